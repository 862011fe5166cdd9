# shellcheck shell=bash disable=SC2034
# Sourced by tests/mutants/blind.sh: the GPU suites that run every day, one a line: NAME|DEVICE|DOCTEST ARGUMENTS.
everyday_gpu=(
    'lavapipe-128|lavapipe-128|'
    'matrix|lavapipe|-tc=*matrix*'
    'swiftshader|swiftshader|-sf=*test_api*,*test_record.cpp,*test_runs.cpp,*test_far.cpp,*test_combine.cpp'
    'swiftshader storage|swiftshader|-tc=*storage*types*'
)
