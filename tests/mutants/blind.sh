# shellcheck shell=bash disable=SC2154 # root, here, build and the tables are of those that source this
# Sourced by tests/mutants/run: --blind and --conformance. Each fault is planted into every module that includes the
# faulted file, and the everyday GPU suites (whole_gpu of tools/lib/tiers.sh), or the checks of vkattn conformance, run
# until one fails. The table is written after each fault.

# shellcheck source-path=SCRIPTDIR source=../../tools/lib/tiers.sh
source "$root/tools/lib/tiers.sh"
declare -A blind_row  # this run's, by the fault's name
notices=  # how the suites noticed the fault, or 'none'; empty where that is not known

# suites_for NAME: prints the lines of whole_gpu. For a fault in the matrix kernel, the suites of that kernel come
# first.
suites_for() {
    local own=matrix
    [[ ${file_of[$1]-} == *matrix* ]] || own='^$'
    printf '%s\n' "${whole_gpu[@]}" | grep -e "$own" || true
    printf '%s\n' "${whole_gpu[@]}" | grep -ve "$own" || true
}

# run_suites NAME LOG [MODULES]: sets notices. doctest names the test that fails, and the one that a signal ends.
run_suites() {
    local suite device arguments code test
    while IFS='|' read -r suite device arguments; do
        read -ra arguments <<<"$arguments"
        code=0
        {
            VKATTN_SPIRV=${3-} GALLIVM_PERF=nopt timeout 1800 "$on" "$device" -- "$build/vkattn_mutant_tests" \
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

# blind_key NAME: prints a fault's key. A fault that a test has noticed stays noticed while that is equal. One that no
# test has noticed has the suites and the tests in its key, too: see try_blind.
blind_key() { key_of "$1"; }

# conformance_modules DEVICE: prints the modules that a fault is planted into. The forms for GPUs take minutes to compile,
# and few checks run them on a CPU, so these stay as they are. lavapipe has no matrices of bfloat16; modules that
# pack 16-bit types are of devices without 16-bit storage, which SwiftShader is.
conformance_modules() {
    case $1 in
        swiftshader) modules_on "$1" | grep -vE '(^|_)b?f16(_rolled)?$' ;;
        *) modules_on "$1" | grep -vE '_packed|matrix_bf16|matrix_[a-z_]*_bf16' ;;
    esac
}

# is_changed NAME MODULE: false if the fault changes nothing in the text of a module for matrix units, which takes seconds
# to compile.
is_changed() {
    local text=$work/unchanged/modules/$2.text
    [[ $2 == *matrix* ]] || return 0
    [[ -e $text ]] || preprocess "$root/shaders" "$2" >"$text"
    [[ $(preprocess "$work/$1/shaders" "$2") != $(<"$text") ]]
}

# compile_fault NAME MODULE...: compiles those that include the faulted file, and are changed by it. False if one does not
# compile.
compile_fault() {
    local name=$1 module affected=()
    for module in "${@:2}"; do
        grep -qF "/shaders/${file_of[$name]}" "$work/unchanged/modules/$module.d" || continue
        is_changed "$name" "$module" || continue
        affected+=("$module")
        [[ -e $work/$name/modules/$module.spv ]] ||
            two_at_a_time compile "$work/$name/shaders" "$module" "$work/$name/modules"
    done
    wait
    all_compiled "$name"
}

# changed_modules NAME MODULE...: prints those in which the fault makes a difference.
changed_modules() {
    local module
    for module in "${@:2}"; do
        [[ ! -e $work/$1/modules/$module.spv ]] ||
            cmp -s "$work/unchanged/modules/$module.spv" "$work/$1/modules/$module.spv" || echo "$module"
    done
}

# conform MODULES LOG DEVICE ARGUMENT...: the exit code of vkattn conformance with the modules of a folder.
conform() {
    { # The shell reports a signal in a line of its own, which nobody needs.
        VKATTN_SPIRV=$1 GALLIVM_PERF=nopt timeout 1800 "$on" "$3" -- "$build/vkattn_mutant" conformance \
            "${@:4}" >"$2" 2>&1 </dev/null
    } 2>/dev/null
}

# run_conformance NAME LOG: as run_suites, by the checks of `vkattn conformance --level standard`. What a check reports
# counts if it passes without the fault. A device that crashes the tool is not proved right either.
run_conformance() {
    local device devices=(lavapipe-128 lavapipe swiftshader) code case modules differs=false
    [[ ${file_of[$1]} != *matrix* ]] || devices=(lavapipe lavapipe-128 swiftshader)
    notices=
    for device in "${devices[@]}"; do
        mapfile -t modules < <(conformance_modules "$device")
        compile_fault "$1" "${modules[@]}" >"$2" 2>&1 || { echo "$1: does not compile" && return; }
        [[ -n $(changed_modules "$1" "${modules[@]}") ]] || continue
        differs=true code=0
        conform "$work/$1/modules" "$2" "$device" --level standard --until-failure || code=$?
        case $code in
            0) continue ;;
            4)
                case=$(sed -n "s/^ *vkattn conformance .*--case '\(.*\)'$/\1/p" "$2" | head -n 1)
                conform "$work/unchanged/modules" "$2.unchanged" "$device" --case "$case" ||
                    { echo "$1: fails without a fault: $case" && return; }
                notices="$device: $(sed -n 's/^FAILED //p' "$2" | head -n 1 | tr '|' ' ')"
                ;;
            124) notices="$device (never ends)" ;;
            *)
                ((code <= 128)) || notices="$device (SIG$(kill -l "$code"))"
                [[ -n $notices ]] || tail -n 8 "$2"
                ;;
        esac
        return
    done
    if $differs; then notices=none; else echo "$1: changes no module"; fi
}

# try_conformance NAME: as try_blind.
try_conformance() {
    local name=$1 start=$SECONDS affected
    plant "$name"
    run_conformance "$name" "$work/$name.log"
    set_row "$name" $((SECONDS - start))
}

# set_row NAME SECONDS: sets the fault's blind_row from notices, or returns 1 where there is no verdict. A fault that
# nothing noticed has the tests in its key, too: new tests may notice it.
set_row() {
    local key
    [[ -n $notices ]] || return 1
    key=$(blind_key "$1")
    [[ $notices != none ]] || key+=-$tests_hash
    blind_row[$1]="| $1 | ${what_of[$1]} | $notices | $2 | $key |"
    echo "${blind_row[$1]}"
}

# try_blind NAME: sets the fault's blind_row, or returns 1 where there is no verdict.
try_blind() {
    local name=$1 log=$work/$1.log start=$SECONDS module affected
    plant "$name" "${all_modules[@]}"
    for module in "${affected[@]}"; do
        two_at_a_time compile "$work/$name/shaders" "$module" "$work/$name/modules"
    done >"$log" 2>&1
    wait
    if ! all_compiled "$name"; then
        echo "$name: does not compile" && return 1
    elif ! changes_a_module "$name"; then
        echo "$name: changes no module" && return 1
    fi
    run_suites "$name" "$log" "$work/$name/modules"
    set_row "$name" $((SECONDS - start))
}

# The suites must pass without a fault, or what they notice means nothing.
try_blind_unchanged() {
    local start=$SECONDS key
    key=$({
        hash_of_files src shaders "${tests[@]}"
        printf '%s\n' "$toolchain" "${whole_gpu[@]}"
    } | hash)
    [[ ${kept_key[unchanged]-} != "$key" ]] || return 0
    run_suites unchanged "$work/unchanged.log"
    [[ $notices == none ]] || die "the suites fail without a fault: $notices"
    blind_row[unchanged]="| unchanged | the shaders as they are | none | $((SECONDS - start)) | $key |"
    echo "${blind_row[unchanged]}"
}

# write_blind: writes the table. A row of this run replaces the one that was kept.
write_blind() {
    local name
    {
        if $conformance; then
            printf '# Faults against vkattn conformance\n\n'
            printf 'Written by tests/mutants/run --conformance: the first check of vkattn conformance --level standard\n'
            printf 'that reports a fault, and passes without it, and the seconds until then.\n'
        else
            printf '# Faults against the everyday suites, whole\n\n'
            printf 'Written by tests/mutants/run --blind: the first test of the everyday GPU suites (whole_gpu of tools/lib/tiers.sh)\n'
            printf "that notices a fault (the fault's own case is one of them), and the seconds until then.\n"
        fi
        printf 'Toolchain: %s.\n\n' "$toolchain"
        printf '| fault | what it is | first test that notices | s | key |\n|---|---|---|---|---|\n'
        for name in unchanged $(all_names); do echo "${blind_row[$name]:-${kept_row[$name]-}}"; done | grep . || true
    } >"$work/table.md"
    mv "$work/table.md" "$table"
}

# is_known NAME: true if the table has its verdict.
is_known() {
    local key
    key=$(blind_key "$1")
    [[ ${kept_key[$1]-} == "$key" || ${kept_key[$1]-} == "$key-$tests_hash" ]]
}

blind_run() {
    local name unknown=0 try=try_blind table=$here/BLIND.md tests=(tests/gpu tests/cases) target=vkattn_mutant_tests
    if $conformance; then
        try=try_conformance table=$here/CONFORMANCE.md target=vkattn_mutant
        tests=(tests/gpu tests/cases tools/vkattn)
    fi
    read_kept "$table"
    mapfile -t all_modules < <(every_module)
    ! $conformance ||
        mapfile -t all_modules < <({ conformance_modules lavapipe && conformance_modules swiftshader; } | sort -u)
    tests_hash=$({ hash_of_files "${tests[@]}" && printf '%s\n' "${whole_gpu[@]}"; } | hash)
    build_target "$target"
    if $conformance; then take_unchanged "${all_modules[@]}"; else compile_unchanged "${all_modules[@]}"; fi
    $conformance || try_blind_unchanged
    for name in "${names[@]}"; do
        is_known "$name" && continue
        "$try" "$name" || unknown=$((unknown + 1))
        write_blind
    done
    write_blind
    echo "noticed by no test:"
    grep -E '^\| .* \| none \| [0-9]+ \|' "$table" | grep -v '^| unchanged ' || echo "(there is no such fault)"
    echo "$((${#names[@]} - unknown)) passed, $unknown failed, 0 skipped"
    ((unknown == 0))
}
