# shellcheck shell=bash disable=SC2034 # for those that source this
# Sourced by tools/check and by the blind run of tests/mutants: the suites of vkattn_gpu_tests in each tier, one a line:
# NAME|DEVICE|DOCTEST ARGUMENTS. Most of their time goes into building pipelines, so they do without LLVM's
# optimisations (GALLIVM_PERF=nopt), with which tests/portable runs: lavapipe's suite took 1,903 s with them from an
# empty shader cache, and 1,174 s without. The longest come first.
#
# Every day the cases, which are most of the suite, run by shares on lavapipe at 128 bits and on its matrices. 16-bit
# dot products and pairs of features run in the full tier only.
#
# The full tier runs the suite on lavapipe, whose default width has matrices. What would take too long is run by
# shares, by the commit, as `conformance --level standard`, whose cases are those of these suites. A 24th of it runs on
# SwiftShader and on lavapipe at 128 and 512 bits, whose suites would take 820 s, 1,300 s and 1,300 s; a third took
# 303 s on SwiftShader and 627 s at 512 bits on a slow day. A twelfth of the backward on matrix units runs on lavapipe,
# where it is about half of the time of the suite (617 s). The suites themselves run an eighth of the rows of each
# tuning table, which took 429 s and 137 s for the matrix kernels. Of the tests of 16-bit dot products a quarter runs:
# with all of them the suite on lavapipe took over 41 minutes of a core.

# The everyday suites with nothing left out: for `tools/check --coverage` and `tests/mutants/run --blind`.
whole_gpu=(
    'lavapipe-128|lavapipe-128|'
    'matrix|lavapipe|-tc=*matrix*'
    'swiftshader|swiftshader|-sf=*test_api*,*test_record.cpp,*test_runs.cpp,*test_far.cpp,*test_combine.cpp'
    'swiftshader storage|swiftshader|-tc=*storage*types*,16-bit*'
)
everyday_gpu=(
    'lavapipe-128|lavapipe-128|-tce=forward*cases*,backward*cases*,16-bit*dot*products*,every*two*features*'
    'matrix|lavapipe|-tc=*matrix* -tce=*cases*,16-bit*dot*products*'
    "${whole_gpu[@]:2}"
)
full_gpu=(
    'lavapipe|lavapipe|-tce=backward*cases:*matrix,16-bit*dot*products*'
    "${whole_gpu[@]:2}"
)
# Shares of the standard level: DEVICE|GLOB of checks|shares.
everyday_shares=(
    'lavapipe-128|*|24'
    'lavapipe|*matrix*|24'
)
full_shares=(
    'lavapipe|backward/matrix/*|12'
    'lavapipe-512|*|24'
    'lavapipe-128|*|24'
    'swiftshader|*|24'
)
