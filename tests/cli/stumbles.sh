# shellcheck shell=bash disable=SC2034,SC2154 # variables and functions of tests/cli/run
#
# Tests of tests/cli/run: where people stumble. Options that are not there yet, numbers out of range, work that is
# interrupted, a cache that cannot be written, a machine without Vulkan.

# ---- what is not there

test_future_options() {
    local sub option shape=(--seqlen-q 8 --head-dim 8)
    for sub in run grad explain bench; do
        for option in --dropout=0.1 --cu-seqlens --page-table; do
            refuses 2 "${option%=*}: " "$sub" "$option"
            holds "the line does not say that it may come" grep -q ' not supported yet$' stderr
        done
    done
    refuses 2 '--sink: attention sinks are given by --sinks' explain "${shape[@]}" --sink sinks.npy
    refuses 2 '--alibi-slopes: the slopes of ALiBi are given by --alibi' run "${files[@]}" --alibi-slopes slopes.npy
    refuses 2 '--page_table: paged keys and values are not supported yet' run "${files[@]}" --page_table=table.npy
    refuses 2 '--dropout: dropout is not supported yet' --dropout 0.5 run "${files[@]}"
    refuses 2 '--sinks: is no option of info' info --sinks
}

test_no_subcommand() {
    local sub
    vkattn
    holds "vkattn alone is no error of usage" test "$code" = 2
    holds "the first line does not say what is missing" grep -q '^vkattn: a subcommand is needed' <(head -n 1 stderr)
    holds "there is something on stdout, for which nobody has asked" test ! -s stdout
    for sub in info run grad explain bench conformance report help version; do
        holds "$sub has no line" test "$(grep -cE "^  $sub +[A-Z]" stderr)" = 1
    done
    holds "there are other lines" test "$(wc -l <stderr)" = 10
}

# The tool says what to do where there is no loader, no driver or no device. tools/on has named one here, unless
# VKATTN_ON says otherwise.
test_device_hints() {
    local sub hint="in a source checkout, tools/on lavapipe -- vkattn ... runs on the CPU"
    for sub in info 'info --json' 'explain --seqlen-q 4 --head-dim 8' 'conformance --level smoke' \
        'conformance --level smoke --device all'; do
        # shellcheck disable=SC2086 # several words
        VKATTN_ON='' drivers=/nonexistent vkattn_two $sub
        holds "no driver, and no hint" complained 3 "; $hint"
        # shellcheck disable=SC2086
        VKATTN_ON=lavapipe drivers=/nonexistent vkattn_two $sub
        holds "the hint is not how to start it" complained 3 "is to be started by tools/on lavapipe -- PROGRAM"
    done
    VKATTN_ON='' vkattn explain --seqlen-q 4 --head-dim 8 --device nonesuch
    holds "a misspelt device is no reason for another one" not grep -qF "$hint" stderr
    VKATTN_ON='' vkattn explain --seqlen-q 4 --head-dim 8 --precision bf16 # of a device that is there
    holds "nor is a problem that the device does not support" not grep -qF "$hint" stderr
}

# ---- numbers

# A number that is too large for its type is a number, and so is one that would become 0.
test_numbers_out_of_range() {
    local explain=(explain --seqlen-q 8 --head-dim 8) option value
    for option in --scale --softcap; do
        refuses 2 "$option: '-1e39' is too small: the least is -3.4e+38" "${explain[@]}" "$option=-1e39"
        refuses 2 "$option: '+-5' is not a number" "${explain[@]}" "$option=+-5"
        for value in 1e39 1e400; do
            refuses 2 "$option: '$value' is too large: the most is 3.4e+38" "${explain[@]}" "$option=$value"
        done
        refuses 2 "$option: '1e-60' is too small: what is not 0 is at least 1.18e-38" "${explain[@]}" "$option=1e-60"
        refuses 2 "$option: 'inf' is not finite" "${explain[@]}" "$option=inf"
        refuses 2 "$option: 'ten' is not a number" "${explain[@]}" "$option=ten"
    done
    refuses 2 "--max-dispatch-gflop: '1e400' is too large: the most is 1e+09" "${explain[@]}" --max-dispatch-gflop 1e400
    for option in --batch --heads-q --seqlen-kv --head-dim-v --num-splits --mask-shape; do
        for value in 100000000000000000000 4294967296 4194304k; do
            refuses 2 "$option: '$value' is too large: the most is 4294967295" "${explain[@]}" "$option=$value"
        done
        refuses 2 "$option: '-1' is too small: the least is 0" "${explain[@]}" "$option=-1"
        refuses 2 "$option: '1.5' is not a whole number" "${explain[@]}" "$option=1.5"
    done
    refuses 2 "'100000000000000000000' is too large: the most is 9223372036854775807" "${explain[@]}" \
        --window 100000000000000000000,0
    refuses 2 "'-100000000000000000000' is too small: the least is -9223372036854775808" "${explain[@]}" \
        --align -100000000000000000000
    refuses 2 "--repeats: '100000000000000000000' is too large" bench --seqlen-q 8 --head-dim 8 \
        --repeats 100000000000000000000
    refuses 2 "--seed: '100000000000000000000' is too large" conformance --fuzz 1 --seed 100000000000000000000
    succeeds "${explain[@]}" --scale +1e-3 --softcap 1e38 --num-splits 0
}

# ---- interruption

# wait_for PID TEXT: until the file stderr has a line that matches TEXT. False when the process has ended before, and
# after five minutes.
wait_for() {
    local end=$((SECONDS + 300))
    until grep -qE "$2" stderr; do
        kill -0 "$1" 2>/dev/null || { fail "it ended before it said '$2'" && return 1; }
        ((SECONDS < end)) || { fail "it has not said '$2' in five minutes" && return 1; }
        sleep 0.1
    done
}

# interrupted TEXT ARGUMENT...: vkattn gets Ctrl-C when its line of progress on the terminal matches TEXT.
interrupted() {
    local terminal command
    last_args="${*:2} (interrupted)"
    # A shell starts what is in the background with SIGINT ignored; env takes that back.
    printf -v command '%q ' env --default-signal=INT "$sdk/ld.so" --library-path "$sdk/lib" "$build/vkattn" "${@:2}"
    rm -f pid
    : >stderr
    VKATTN_PROGRESS_AFTER=0 script -qefc "echo \$\$ >pid; exec $command >stdout" /dev/null </dev/null >stderr &
    terminal=$!
    if ! wait_for "$terminal" "$1"; then
        [[ ! -s pid ]] || kill -KILL "$(<pid)" 2>/dev/null || true
        wait "$terminal" || true
        return
    fi
    kill -INT "$(<pid)"
    code=0
    wait "$terminal" || code=$?
    sed -i -e 's/\r$//' -e 's/\r\x1b\[K/\n/g' stderr # each state of the line of progress becomes a line
    holds "the exit code is $code, not 4" test "$code" = 4
    holds "it is not said that the run is being finished" grep -q '^finishing the run under way' stderr
    holds "it is not said that results are not all" grep -q 'vkattn: warning: interrupted: ' stderr
}

test_bench_interrupted() {
    local shape=(--seqlen-q 64 --head-dim 8 --repeats 1000000)
    interrupted 'timing 0 %, .* left' bench "${shape[@]}" # which a first block of runs leaves
    holds "no time" grep -qE '^time +[0-9.]+ ms, the median' stdout
    holds "all blocks are said to have run" grep -qE '^runs +[0-9]{1,5} blocks? of' stdout
    holds "there is no rate" grep -qE '^rate +[0-9.]+ TFLOP/s$' stdout
    holds "the device's ceilings are told, which were not measured" not grep -q '^ceiling' stdout
    interrupted 'timing 0 %, .* left' bench "${shape[@]}" --json
    holds "the JSON lacks something" "$build/vkattn_json_check" time_ms.median=number tflops=number rate_ratio=null \
        copy_gbps=null startup=null interrupted=boolean <stdout
    holds "the JSON does not say that it is partial" grep -q '"interrupted":true' stdout
    printf 'rows=8,chunk=8\nrows=4,chunk=8\n' >sweep.txt
    interrupted 'tunings 0 %, timing 0 %,' bench "${shape[@]}" --sweep sweep.txt
}

# A suite's cases that have run are there: none here, because the first one is still warming up.
test_bench_suite_interrupted() {
    interrupted 'warming up' bench --suite llama --json
    holds "the JSON is not whole" "$build/vkattn_json_check" suite=string cases=array copy_gbps=null <stdout
    holds "the JSON does not say that it is partial" grep -q '"cases":\[\],"interrupted":true' stdout
}

# ---- a pipeline cache that cannot be written

# warns TEXT: the last call has done its work, and has a warning on stderr.
warns() {
    holds "the warning is not there, or alone, or is a failure" test "$code $(<stderr)" = \
        "0 vkattn: warning: --pipeline-cache: $1; what was compiled is not kept"
}

# A file that is new or damaged takes the runtime's self-test, for which there is something to write.
test_cache_is_not_written() {
    local long explain=(explain --seqlen-q 8 --head-dim 8 --pipeline-cache)
    rm -f short kept # which an earlier test may have left read-only
    # It is written through a temporary file, whose name is too long here.
    long=$(printf 'c%.0s' {1..250})
    vkattn "${explain[@]}" "$long"
    warns "$long cannot be written: File name too long"
    holds "something was left behind" test -z "$(compgen -G 'ccc*')"
    printf vkattnc1 >short # of a file that was cut off
    chmod a-w short
    vkattn "${explain[@]}" short
    warns 'short is read-only'
    holds "a read-only file was replaced" test "$(<short)" = vkattnc1
    copy_cache kept
    chmod a-w kept
    succeeds "${explain[@]}" kept # has nothing to write
}
