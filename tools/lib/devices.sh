# shellcheck shell=bash disable=SC2034
# Sourced by the tools: the devices of the SDK folder by name. tools/on says what they are.

runs=(lavapipe lavapipe-128 lavapipe-512 swiftshader)
compiles=(amd:{polaris10,vega10,renoir,navi10,navi21,vangogh,navi31,phoenix,strix1,gfx1201}
    adreno:{618,660,702,740,750,830} nvk:{pascal,turing,ampere} apple:m1)
