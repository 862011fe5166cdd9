# shellcheck shell=bash disable=SC2034 # for those that source this
# Sourced by tools/check and by the blind run of tests/mutants: the suites of vkattn_gpu_tests in each tier, one a line:
# NAME|DEVICE|DOCTEST ARGUMENTS. Most of their time goes into building pipelines, so they do without LLVM's
# optimisations (GALLIVM_PERF=nopt), with which tests/portable runs: lavapipe's suite took 1,903 s with them from an
# empty shader cache, and 1,174 s without. The longest come first.
#
# The full tier runs the whole suite on lavapipe, whose default width has matrices, and in place of the everyday suite
# of lavapipe-128 a third of `conformance --level standard`, whose cases are those of these suites: so it does on
# SwiftShader and on lavapipe at 512 bits. The suites of the three would take 1,300 s, 820 s and 1,300 s.

everyday_gpu=(
    'lavapipe-128|lavapipe-128|'
    'matrix|lavapipe|-tc=*matrix*'
    'swiftshader|swiftshader|-sf=*test_api*,*test_record.cpp,*test_runs.cpp,*test_far.cpp,*test_combine.cpp'
    'swiftshader storage|swiftshader|-tc=*storage*types*,16-bit*'
)
full_gpu=(
    'lavapipe|lavapipe|'
    "${everyday_gpu[@]:2}"
)
