# shellcheck shell=bash disable=SC2154 # root, here, build and the tables are of those that source this
# Sourced by tests/mutants/run: --blind. Each fault is planted into every module that includes the faulted file, and the
# everyday GPU suites run until a test fails. BLIND.md is written after each fault.

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
    run_suites "$name" "$log" "$work/$name/modules"
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
        hash_of_files src shaders tests/gpu tests/cases
        printf '%s\n' "$toolchain" "${everyday_gpu[@]}"
    } | hash)
    [[ ${kept_key[unchanged]-} != "$key" ]] || return 0
    run_suites unchanged "$work/unchanged.log"
    [[ $notices == none ]] || die "the suites fail without a fault: $notices"
    blind_row[unchanged]="| unchanged | the shaders as they are | none | $((SECONDS - start)) | $key |"
    echo "${blind_row[unchanged]}"
}

# write_blind: writes BLIND.md. A row of this run replaces the one that was kept.
write_blind() {
    local name
    {
        printf '# Faults against the everyday suites\n\n'
        printf 'Written by tests/mutants/run --blind: the first test of the everyday GPU suites (tools/lib/tiers.sh)\n'
        printf "that notices a fault (the fault's own case is one of them), and the seconds until then.\n"
        printf 'Toolchain: %s.\n\n' "$toolchain"
        printf '| fault | what it is | first test that notices | s | key |\n|---|---|---|---|---|\n'
        for name in unchanged $(all_names); do echo "${blind_row[$name]:-${kept_row[$name]-}}"; done | grep . || true
    } >"$work/BLIND.md"
    mv "$work/BLIND.md" "$here/BLIND.md"
}

# is_known NAME: true if BLIND.md has its verdict.
is_known() {
    local key
    key=$(blind_key "$1")
    [[ ${kept_key[$1]-} == "$key" || ${kept_key[$1]-} == "$key-$tests_hash" ]]
}

blind_run() {
    local name unknown=0
    read_kept "$here/BLIND.md"
    mapfile -t all_modules < <(every_module)
    tests_hash=$({ hash_of_files tests/gpu tests/cases && printf '%s\n' "${everyday_gpu[@]}"; } | hash)
    build_target vkattn_mutant_tests
    compile_unchanged "${all_modules[@]}"
    try_blind_unchanged
    for name in "${names[@]}"; do
        is_known "$name" && continue
        try_blind "$name" || unknown=$((unknown + 1))
        write_blind
    done
    write_blind
    echo "noticed by no test:"
    grep -E '^\| .* \| none \| [0-9]+ \|' "$here/BLIND.md" | grep -v '^| unchanged ' || echo "(there is no such fault)"
    echo "$((${#names[@]} - unknown)) passed, $unknown failed, 0 skipped"
    ((unknown == 0))
}
