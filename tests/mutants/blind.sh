# shellcheck shell=bash disable=SC2154 # root, here, build and the tables are of those that source this
# Sourced by tests/mutants/run: --blind and --conformance. Each fault is planted into every module that includes the
# faulted file, and the everyday GPU suites, or the checks of vkattn conformance, run until one fails. The table is
# written after each fault.

# shellcheck source-path=SCRIPTDIR source=../../tools/lib/tiers.sh
source "$root/tools/lib/tiers.sh"
declare -A blind_row  # this run's, by the fault's name
notices=  # how the suites noticed the fault, or 'none'; empty where that is not known

# suites_for NAME: prints the lines of everyday_gpu. For a fault in the matrix kernel, the suites of that kernel come
# first.
suites_for() {
    local own=matrix
    [[ ${file_of[$1]-} == *matrix* ]] || own='^$'
    printf '%s\n' "${everyday_gpu[@]}" | grep -e "$own" || true
    printf '%s\n' "${everyday_gpu[@]}" | grep -ve "$own" || true
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

# run_conformance NAME LOG [MODULES]: as run_suites, by the checks of `vkattn conformance --level standard`. A device that
# crashes the tool is not proved right either.
run_conformance() {
    local device devices=(lavapipe-128 lavapipe) code
    [[ ${file_of[$1]-} != *matrix* ]] || devices=(lavapipe lavapipe-128)
    for device in "${devices[@]}"; do
        code=0
        {
            VKATTN_SPIRV=${3-} GALLIVM_PERF=nopt timeout 1800 "$on" "$device" -- "$build/vkattn_mutant" conformance \
                --level standard --until-failure >"$2" 2>&1 </dev/null || code=$?
        } 2>/dev/null
        case $code in
            0) continue ;;
            4) notices="$device: $(sed -n 's/^FAILED //p' "$2" | head -n 1 | tr '|' ' ')" ;;
            124) notices="$device (never ends)" ;;
            *)
                notices=
                ((code <= 128)) || notices="$device (SIG$(kill -l "$code"))"
                [[ -n $notices ]] || tail -n 8 "$2"
                ;;
        esac
        return
    done
    notices=none
}

# try_blind NAME: sets the fault's blind_row, or returns 1 where there is no verdict. A fault that nothing noticed has
# the tests in its key, too: new tests may notice it.
try_blind() {
    local name=$1 log=$work/$1.log start=$SECONDS key module affected
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
    $notice "$name" "$log" "$work/$name/modules"
    [[ -n $notices ]] || return 1
    key=$(blind_key "$name")
    [[ $notices != none ]] || key+=-$tests_hash
    blind_row[$name]="| $name | ${what_of[$name]} | $notices | $((SECONDS - start)) | $key |"
    echo "${blind_row[$name]}"
}

# The suites must pass without a fault, or what they notice means nothing.
try_blind_unchanged() {
    local start=$SECONDS key
    key=$({
        hash_of_files src shaders "${tests[@]}"
        printf '%s\n' "$toolchain" "${everyday_gpu[@]}"
    } | hash)
    [[ ${kept_key[unchanged]-} != "$key" ]] || return 0
    $notice unchanged "$work/unchanged.log"
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
            printf 'that reports a fault, and the seconds until then.\n'
        else
            printf '# Faults against the everyday suites\n\n'
            printf 'Written by tests/mutants/run --blind: the first test of the everyday GPU suites (tools/lib/tiers.sh)\n'
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
    local name unknown=0 notice=run_suites table=$here/BLIND.md tests=(tests/gpu tests/cases) target=vkattn_mutant_tests
    if $conformance; then
        notice=run_conformance table=$here/CONFORMANCE.md target=vkattn_mutant
        tests=(tests/gpu tests/cases tools/vkattn)
    fi
    read_kept "$table"
    mapfile -t all_modules < <(every_module)
    tests_hash=$({ hash_of_files "${tests[@]}" && printf '%s\n' "${everyday_gpu[@]}"; } | hash)
    build_target "$target"
    compile_unchanged "${all_modules[@]}"
    try_blind_unchanged
    for name in "${names[@]}"; do
        is_known "$name" && continue
        try_blind "$name" || unknown=$((unknown + 1))
        write_blind
    done
    write_blind
    echo "noticed by no test:"
    grep -E '^\| .* \| none \| [0-9]+ \|' "$table" | grep -v '^| unchanged ' || echo "(there is no such fault)"
    echo "$((${#names[@]} - unknown)) passed, $unknown failed, 0 skipped"
    ((unknown == 0))
}
