# shellcheck shell=bash disable=SC2154 # root, work, build and the tables are of those that source this
# Sourced by tests/mutants/run: --blind and --conformance. Each fault is planted into every module that it changes, and
# the everyday GPU suites (whole_gpu of tools/lib/tiers.sh), or the checks of vkattn conformance, run until one fails.

# shellcheck source-path=SCRIPTDIR source=../../tools/lib/tiers.sh
source "$root/tools/lib/tiers.sh"

# suites_for NAME: prints the lines of whole_gpu. For a fault in the matrix kernel, the suites of that kernel come
# first.
suites_for() {
    local own=matrix
    [[ ${file_of[$1]-} == *matrix* ]] || own='^$'
    printf '%s\n' "${whole_gpu[@]}" | grep -e "$own" || true
    printf '%s\n' "${whole_gpu[@]}" | grep -ve "$own" || true
}

# run_suites NAME LOG MODULES: sets notices to how the suites noticed the fault, or to none. It is empty where that is
# not known. doctest names the test that fails, and the one that a signal ends.
run_suites() {
    local suite device arguments code test
    while IFS='|' read -r suite device arguments; do
        read -ra arguments <<<"$arguments"
        code=0
        {
            VKATTN_SPIRV=$3 GALLIVM_PERF=nopt timeout 1800 "$on" "$device" -- "$build/vkattn_mutant_tests" \
                "${arguments[@]}" --abort-after=1 >"$2" 2>&1 </dev/null || code=$?
        } 2>/dev/null
        ((code != 0)) || continue
        test="$suite: $(sed -n 's/^TEST CASE: *//p' "$2" | tail -n 1)"
        case $(judge "$code" "$2") in
            caught) notices=$test ;;
            "caught by a guard page"*) notices="$test (signal of a guard page)" ;;
            "never ends") notices="$test (never ends)" ;;
            *) notices= && tail -n 8 "$2" ;;
        esac
        return
    done < <(suites_for "$1")
    notices=none
}

# try_suites NAME
try_suites() {
    local modules
    mapfile -t modules < <(every_module)
    compile_planted "$1" "${modules[@]}" >"$work/$1.log" 2>&1 || { echo "$1: does not compile" && return; }
    changes_a_module "$1" "${modules[@]}" || { echo "$1: changes no module" && return; }
    run_suites "$1" "$work/$1.log" "$work/$1/modules"
}

# The suites must pass without a fault, or what they notice means nothing. A run that goes on where another one ended
# does not try that again.
try_suites_unchanged() {
    local state notices
    state=$({ hash_of_files src shaders tests/gpu tests/cases && printf '%s\n' "$toolchain" "${whole_gpu[@]}"; } | hash)
    [[ $(cat "$work/unchanged" 2>/dev/null) != "$state" ]] || return 0
    run_suites unchanged "$work/unchanged.log" ""
    [[ $notices == none ]] || die "the suites fail without a fault: $notices"
    echo "$state" >"$work/unchanged"
}

# conformance_modules DEVICE: prints the modules that a fault is planted into. The forms for GPUs take minutes to
# compile, and few checks run them on a CPU, so these stay as they are. lavapipe has no matrices of bfloat16; modules
# that pack 16-bit types are of devices without 16-bit storage, which SwiftShader is.
conformance_modules() {
    case $1 in
        swiftshader) modules_on "$1" | grep -vE '(^|_)b?f16(_rolled)?$' ;;
        *) modules_on "$1" | grep -vE '_packed|matrix_bf16|matrix_[a-z_]*_bf16' ;;
    esac
}

# conform MODULES LOG DEVICE ARGUMENT...: the exit code of vkattn conformance with the modules of a folder.
conform() {
    { # The shell reports a signal in a line of its own, which nobody needs.
        VKATTN_SPIRV=$1 GALLIVM_PERF=nopt timeout 1800 "$on" "$3" -- "$build/vkattn_mutant" conformance \
            "${@:4}" >"$2" 2>&1 </dev/null
    } 2>/dev/null
}

# try_conformance NAME: sets notices as run_suites does. What a check reports counts if it passes without the fault. A
# device that crashes the tool is not proved right either.
try_conformance() {
    local name=$1 log=$work/$1.log device devices=(lavapipe-128 lavapipe swiftshader) code case modules
    local differs=false
    [[ ${file_of[$name]} != *matrix* ]] || devices=(lavapipe lavapipe-128 swiftshader)
    for device in "${devices[@]}"; do
        mapfile -t modules < <(conformance_modules "$device")
        compile_planted "$name" "${modules[@]}" >"$log" 2>&1 || { echo "$name: does not compile" && return; }
        changes_a_module "$name" "${modules[@]}" || continue
        differs=true
        code=0
        conform "$work/$name/modules" "$log" "$device" --level standard --until-failure || code=$?
        case $code in
            0) continue ;;
            4)
                case=$(sed -n "s/^ *vkattn conformance .*--case '\(.*\)'$/\1/p" "$log" | head -n 1)
                conform "" "$log.unchanged" "$device" --case "$case" ||
                    { echo "$name: fails without a fault: $case" && return; }
                notices="$device: $(sed -n 's/^FAILED //p' "$log" | head -n 1 | tr '|' ' ')"
                ;;
            124) notices="$device (never ends)" ;;
            *)
                ((code <= 128)) || notices="$device (SIG$(kill -l "$code"))"
                [[ -n $notices ]] || tail -n 8 "$log"
                ;;
        esac
        return
    done
    if $differs; then notices=none; else echo "$name: changes no module"; fi
}

# is_known NAME: true if the table has a verdict of the fault as it is now. Where nothing noticed it, it is tried again:
# there may be new tests.
is_known() {
    local verdict=${kept_suites[$1]-}
    [[ $whole == suites ]] || verdict=${kept_conformance[$1]-}
    case $verdict in "" | none | "not tried" | *"$older") return 1 ;; esac
}

# try_whole: all of names that have no verdict. The table is written after each fault.
try_whole() {
    local name notices
    passed=0 failed=0
    if [[ $whole == suites ]]; then
        build_target vkattn_mutant_tests
        try_suites_unchanged
    else
        build_target vkattn_mutant
    fi
    read_table
    for name in "${names[@]}"; do
        [[ ${place_of[$name]} != emulated ]] || continue
        if ! is_known "$name"; then
            notices=
            plant "$name"
            "try_$whole" "$name"
            [[ -n $notices ]] || { failed=$((failed + 1)) && continue; }
            if [[ $whole == suites ]]; then suites_of[$name]=$notices; else conformance_of[$name]=$notices; fi
            echo "$name: ${what_of[$name]}: $notices"
            write_table
        fi
        passed=$((passed + 1))
    done
}
