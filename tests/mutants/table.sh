# shellcheck shell=bash disable=SC2154,SC2034 # table, work and the tables of faults.sh are the caller's
# Sourced by tests/mutants/run: RESULTS.md, a row a fault. A fault whose key is the row's has not changed since its case
# noticed it. What the whole suites and `vkattn conformance` say of a fault is older where `before it changed` follows.

declare -A kept_outcome kept_suites kept_conformance kept_key  # columns of the table, by the fault's name
declare -A outcome_of suites_of conformance_of                 # what this run found, likewise
older=", before it changed"

# kept_toolchain: prints the one that the table was made with.
kept_toolchain() { sed -n 's/^.*Toolchain: \(.*\)\.$/\1/p' "$table" 2>/dev/null || true; }

# kept_sum: prints sum_of_plans of the run that found the table's keys.
kept_sum() { sed -n 's/^Plans: \(.*\)\.$/\1/p' "$table" 2>/dev/null || true; }

# keep_keys: takes the table's keys, and is false if they have to be found.
keep_keys() {
    local name
    $changed && [[ $(kept_sum) == "$sum_of_plans" ]] || return
    for name in "${names[@]}"; do [[ ${kept_key[$name]-none} != none ]] || return; done
    for name in "${names[@]}"; do key_of[$name]=${kept_key[$name]}; done
}

read_table() {
    local name outcome suites conformance key
    while IFS=$'\t' read -r name outcome suites conformance key; do
        kept_outcome[$name]=$outcome kept_suites[$name]=$suites kept_conformance[$name]=$conformance
        kept_key[$name]=$key
    done < <(awk -F ' *[|] *' -v OFS='\t' '/^\| [a-z][a-z0-9-]* \|/ && $2 != "fault" { print $2, $4, $5, $6, $7 }' \
        "$table" 2>/dev/null)
}

# aged VERDICT: prints it, said to be of the time before the fault changed.
aged() { case $1 in "" | "not tried" | *"$older") echo "${1:-not tried}" ;; *) echo "$1$older" ;; esac; }

# row_of NAME: prints the fault's row, if its case was ever tried. A fault that its case did not notice has no key, so
# that it is tried again.
row_of() {
    local name=$1 outcome=${kept_outcome[$1]-} suites=${kept_suites[$1]-} conformance=${kept_conformance[$1]-}
    local key=${kept_key[$1]-}
    if [[ -n ${outcome_of[$name]-} ]]; then
        outcome=${outcome_of[$name]}
        [[ $key == "${key_of[$name]}" ]] || suites=$(aged "$suites") conformance=$(aged "$conformance")
        key=${key_of[$name]}
        [[ $outcome == caught* ]] || key=none
    fi
    [[ -n $outcome ]] || return 0
    suites=${suites_of[$name]:-$suites} conformance=${conformance_of[$name]:-$conformance}
    if [[ ${place_of[$name]} == emulated ]]; then suites="no such unit" conformance="no such unit"; fi
    echo "| $name | ${what_of[$name]} | $outcome | $suites | $conformance | $key |"
}

# write_table: in the order of mutants.txt. The table is read again, because another run may have written it meanwhile.
write_table() {
    local name sum=$sum_of_plans
    read_table
    # The sum stands for the keys of all rows: it is none where a row keeps an older key, or has the key of another run.
    for name in "${all_names[@]}"; do
        [[ -n ${outcome_of[$name]-} || ${kept_key[$name]-none} == "${key_of[$name]-}" ]] || sum=none
    done
    {
        cat <<END
# Planted faults

Written by tests/mutants/run --record, --blind and --conformance, a row a fault of mutants.txt: how its case noticed it,
the first test of the everyday GPU suites that notices it (whole_gpu of tools/lib/tiers.sh), and the first check of
\`vkattn conformance --level standard\` that reports it. No device of these suites has the matrix unit that
tests/emulation has. Toolchain: $toolchain.
Plans: $sum.

| fault | what it is | its case | first test of the suites | first check of conformance | key |
|---|---|---|---|---|---|
END
        for name in "${all_names[@]}"; do row_of "$name"; done
    } >"$work/table.md"
    mv "$work/table.md" "$table"
}
