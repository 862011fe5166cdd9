# shellcheck shell=bash disable=SC2034 # for those that source this
# Sourced by tools/check and by the blind run of
# tests/mutants: the suites of vkattn_gpu_tests in each tier, one a line: NAME|DEVICE|DOCTEST ARGUMENTS. Most of their
# time goes into building pipelines, so all but lavapipe-128 of the full tier do without LLVM's optimisations
# (GALLIVM_PERF=nopt). The longest come first.

everyday_gpu=(
    'lavapipe-128|lavapipe-128|'
    'matrix|lavapipe|-tc=*matrix*'
    'swiftshader|swiftshader|-sf=*test_api*,*test_record.cpp,*test_runs.cpp,*test_far.cpp,*test_combine.cpp'
    'swiftshader storage|swiftshader|-tc=*storage*types*,16-bit*'
)
full_gpu=(
    'swiftshader|swiftshader|'
    'lavapipe|lavapipe|'
    'lavapipe-512|lavapipe-512|'
    'lavapipe-128|lavapipe-128|'
)
