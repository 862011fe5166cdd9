# shellcheck shell=bash disable=SC2034 # for those that source this
# Sourced by tools/check and by the blind run of tests/mutants: the suites of vkattn_gpu_tests in each tier, one a line:
# NAME|DEVICE|DOCTEST ARGUMENTS. Most of their time goes into building pipelines, so they do without LLVM's
# optimisations (GALLIVM_PERF=nopt), with which tests/portable runs: lavapipe's suite took 1,903 s with them from an
# empty shader cache, and 1,174 s without. The longest come first.
#
# Two suites of the full tier leave something out. SwiftShader takes 174 s to build the backward's modules of GPUs, which
# lavapipe runs at three widths. The pairs of features run on the three other devices, so lavapipe does without them at
# 512 bits.

everyday_gpu=(
    'lavapipe-128|lavapipe-128|'
    'matrix|lavapipe|-tc=*matrix*'
    'swiftshader|swiftshader|-sf=*test_api*,*test_record.cpp,*test_runs.cpp,*test_far.cpp,*test_combine.cpp'
    'swiftshader storage|swiftshader|-tc=*storage*types*,16-bit*'
)
full_gpu=(
    'swiftshader|swiftshader|-tce=backward*cases:*modules*of*GPUs'
    'lavapipe|lavapipe|'
    'lavapipe-512|lavapipe-512|-tce=every*two*features*'
    'lavapipe-128|lavapipe-128|'
)
