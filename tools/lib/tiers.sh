# shellcheck shell=bash disable=SC2034 # for those that source this
# Sourced by tools/check and by the blind run of tests/mutants: the suites of vkattn_gpu_tests in each tier, one a line:
# NAME|DEVICE|DOCTEST ARGUMENTS. Most of their time goes into building pipelines, so they do without LLVM's
# optimisations (GALLIVM_PERF=nopt), with which tests/portable runs: lavapipe's suite took 1,903 s with them from an
# empty shader cache, and 1,174 s without. The longest come first.
#
# The cases take most of the time of the whole suite, and pairs of features and 16-bit dot products much of the rest. In
# the full tier shares of all of them run on lavapipe, whose default width has matrices (share_gpu below, and gpu_cases
# in tools/check); every day a share of the cases runs as `conformance
# --level standard`. The full tier does the same on SwiftShader and on lavapipe at 128 and 512 bits, whose whole suites
# would take 820 s, 1,300 s and 1,300 s. Of the rows of each tuning table an eighth runs; all of them took 429 s, and
# 137 s for the matrix kernels. The commit chooses the shares.

# For `tools/check --coverage` and `tests/mutants/run --blind`: all of the suites below, with nothing left out.
whole_gpu=(
    'lavapipe-128|lavapipe-128|'
    'matrix|lavapipe|-tc=*matrix*'
    'swiftshader|swiftshader|-sf=*test_api*,*test_record.cpp,*test_runs.cpp,*test_far.cpp,*test_combine.cpp'
    'swiftshader storage|swiftshader|-tc=*storage*types*,16-bit*'
)
# Every day: the interface, on the narrowest vectors. A case of each feature, a promise of each kind and matrix units
# run as `conformance --level smoke`, in the command line's tests; another driver, SwiftShader, before every landing.
everyday_gpu=(
    'lavapipe-128|lavapipe-128|-tce=*cases*,16-bit*,every*two*features*,behaviour*every*,an*attention*layer*'
)
# These tests took 430 s of a core on lavapipe, and all others of the interface 150 s (-d prints the time of each).
slow='behaviour*every*,*may*end*,every*Vulkan*call*,self-test*,16-bit*rounded*,*000*times*,*4*GiB*,a*million*'
full_gpu=(
    "lavapipe|lavapipe|-tce=forward*cases*,backward*cases*,16-bit*dot*products*,every*two*features*,$slow"
    "${whole_gpu[@]:2}"
    'lavapipe-512|lavapipe-512|-tc=a*block*map*' # it builds no addresses that differ between invocations
)
# Shares of the tests that full_gpu leaves out on lavapipe: NAME|DOCTEST PATTERN|shares.
share_gpu=(
    "slow|$slow|3"
    'dot products|16-bit*dot*products*|8'
    'pairs of features|every*two*features*|2'
)
# Shares of the standard level: DEVICE|GLOB of checks|shares.
everyday_shares=(
    'lavapipe-128|*|24'
)
full_shares=(
    'lavapipe-512|*|24'
    'lavapipe-128|*|24'
    'swiftshader|*|24'
)
