# shellcheck shell=bash disable=SC2154 # logs is of the caller
# Sourced by tools/check: runs test suites, some at a time, and counts.
#
# A suite is a program whose last line 'N passed, N failed, N skipped' counts; the lines
# 'skipped: REASON' say why. Of each suite NAME there are $logs/NAME.log and $logs/NAME.count.

# seconds_since EPOCHREALTIME
seconds_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

# count NAME 'N passed, N failed, N skipped' [TIMES]: into the totals, and on the terminal.
count() {
    printf '%s\n' "$2" >"$logs/$1.count"
    printf '  %-24s %s%s\n' "$1" "$2" "${3:+, $3}"
}

# skip NAME REASON: a suite that cannot run here, as one skipped test.
skip() {
    printf 'skipped: %s\n' "$2" >"$logs/$1.log"
    count "$1" "0 passed, 0 failed, 1 skipped"
}

# count_one COMMAND...: a command that passes or fails, as a suite of one test.
count_one() {
    if "$@"; then echo "1 passed, 0 failed, 0 skipped"; else echo "0 passed, 1 failed, 0 skipped"; fi
}

# suite NAME COMMAND...: runs and counts it. A suite that ends otherwise than its count says is one more
# failure: it crashed, or lost its count. The log of one that failed is shown. Beside the seconds that it took stand
# those of a core, which tell what a suite costs, whatever else the machine was doing.
suite() {
    local name=$1 log=$logs/$1.log start=$EPOCHREALTIME code=0 line passed failed skipped TIMEFORMAT='%U %S'
    shift
    # Counts until there is a result: a suite that is killed with its shell must not be missing.
    echo "0 passed, 1 failed, 0 skipped" >"$logs/$name.count"
    { time "$@" >"$log" 2>&1 </dev/null || code=$?; } 2>"$logs/$name.times"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1) || line='0 passed, 1 failed, 0 skipped'
    read -r passed _ failed _ skipped _ <<<"$line"
    if ((code != 0 && failed == 0)); then
        echo "the exit code is $code" >>"$log"
        failed=1
    elif ((passed + failed + skipped == 0)); then
        echo "nothing was tested" >>"$log"
        failed=1
    fi
    # In one piece: others may be printing.
    echo "$(
        count "$name" "$passed passed, $failed failed, $skipped skipped" \
            "$(seconds_since "$start") s, $(awk '{ printf "%.1f", $1 + $2 }' "$logs/$name.times") s of a core"
        ((failed == 0)) || tail -n 100 "$log" | sed 's/^/    /'
    )"
}

# take_turn COUNT: waits until fewer than COUNT suites run in the background.
take_turn() {
    while (($(jobs -rp | wc -l) >= $1)); do wait -n || true; done
}

wait_suites() { wait; }

# stop_suites: an interrupted check leaves none running.
stop_suites() {
    local suites
    mapfile -t suites < <(jobs -rp)
    ((${#suites[@]} == 0)) || kill "${suites[@]}" 2>/dev/null || true
}

# print_failures: the names of the suites that failed, with the end of their logs. They come after the skips, because
# some readers keep only the end of what the check prints.
print_failures() {
    local count name
    for count in "$logs"/*.count; do
        name=$(basename "$count" .count)
        grep -q ' 0 failed' "$count" && continue
        tail -n 20 "$logs/$name.log" 2>/dev/null | sed "s/^/failed: $name: /" || true
    done
}

# print_summary: the reasons of all skips, the ends of the logs of suites that failed, and the totals as the last line.
# False if something failed.
print_summary() {
    local log
    for log in "$logs"/*.log; do
        sed -n "s|^skipped: |skipped: $(basename "$log" .log): |p" "$log"
    done | sort | uniq -c | sed -E 's/^ *1 //; s/^ *([0-9]+) (.*)/\2 (\1 times)/'
    print_failures
    cat "$logs"/*.count | awk '
        { passed += $1; failed += $3; skipped += $5 }
        END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 }'
}
