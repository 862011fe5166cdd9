# shellcheck shell=bash disable=SC2154 # variables and functions of tests/cli/run
#
# Tests of tests/cli/run: vkattn report.

# report_json FILE: the JSON inside a page.
report_json() { sed -n 's,^<script type="application/json" id="vkattn-report">\(.*\)</script>$,\1,p' "$1"; }

# verdict_says FILE TEXT: the JSON's verdict has the text.
verdict_says() {
    report_json "$1" | grep -oE '"verdict":"[^"]*"' | grep -E -- "$2" || { report_json "$1" | head -c 600 && return 1; }
}

test_report() {
    local one
    succeeds report --minutes 0.2 --out out/r.html
    holds "the last line does not count" grep -qE '^[1-9][0-9]* passed, 0 failed, .*: out/r.html$' stdout
    holds "the journal was left behind" test ! -e out/r.html.part
    report_json out/r.html >json
    holds "the JSON lacks something" "$build/vkattn_json_check" report=number device.name=string device.driver=string \
        summary.passed=number summary.verdict=string ceilings.fma_tflops=number bench=array checks.0.name=string \
        checks.0.worst=number <json
    holds "it is not said how often a check ran" grep -qE '"runs":[1-9][0-9]*,"wrong":0' json
    holds "nothing is said to be right" verdict_says out/r.html 'and nothing was wrong'
    one=$(start "$build/vkattn" info --json | grep -oE '"uuid":"[0-9a-f]*"' | head -n 1 | cut -d'"' -f4)
    holds "the page names this copy of the device" not grep -q "$one" out/r.html
    holds "the page names a user or a folder" not grep -qF -e "$PWD" -e "$HOME/" -e '"uuid"' out/r.html
    refuses 2 --filter report --filter nonesuch
    refuses 2 --minutes report --minutes 0
    refuses 2 --out report --out ''
    refuses 2 --out report --filter 'forward/heads/*' --out missing/r.html
}

# A kill loses nothing, and a check that ends the program again, alone, is known by that.
test_report_goes_on() {
    local only=(--filter 'forward/heads/*' --out out/r.html)
    # Not by `start`, because a signal to a function's shell does not reach the program.
    "$sdk/ld.so" --library-path "$sdk/lib" "$build/vkattn" report --minutes 5 "${only[@]}" >stdout 2>stderr &
    local killed=$! end=$((SECONDS + 300))
    until grep -q '"ends"' out/r.html.part 2>/dev/null || ((SECONDS > end)); do sleep 0.1; done
    kill -KILL "$killed"
    wait "$killed" 2>/dev/null || true
    holds "nothing was kept" grep -q '"ends"' out/r.html.part
    # The journal gets a check that had begun alone, and a line that was cut off.
    sed -i '/"begins"/d' out/r.html.part
    sed -nE 's/.*"ends":"([^"]*)".*/\1/p' out/r.html.part >ended
    start "$build/vkattn" conformance --list --filter 'forward/heads/*' | grep -vxFf ended | tail -n 1 >culprit
    printf '{"begins":"%s","alone":true}\n{"ends":"forw' "$(<culprit)" >>out/r.html.part
    vkattn report --minutes 0.1 "${only[@]}"
    holds "a check that ended the program is no fault" test "$code" = 4
    holds "it does not go on" grep -q '^continues after [1-9]' stdout
    holds "the culprit is not named" verdict_says out/r.html "the program ended in $(<culprit)"
    holds "the culprit did not fail" grep -qF "$(<culprit)\",\"status\":\"failed\"" <(report_json out/r.html)
    holds "the journal was left behind" test ! -e out/r.html.part
    echo '{"journal":1,"device":{"name":"another"},"uuid":""}' >out/r.html.part
    vkattn report "${only[@]}"
    holds "another device's journal is taken" grep -qE -- '^vkattn: --out: .*another device' stderr
    echo 'a letter' >out/r.html.part
    vkattn report "${only[@]}"
    holds "a letter is taken for a journal" grep -qE -- '^vkattn: --out: .*no journal' stderr
    holds "the letter is gone" grep -q 'a letter' out/r.html.part
    succeeds report --minutes 0.05 "${only[@]}" --new
}

# The driver leaves out one dispatch in 50.
test_report_flaky_driver() {
    local check
    check=$(start "$build/vkattn" conformance --list --level smoke | grep '^forward/heads' | head -n 1)
    vkattn_flaky 50 report --minutes 0.5 --filter "$check" --out out/r.html
    holds "a flaky driver is right" test "$code" = 4
    holds "it is not said to be flaky" verdict_says out/r.html '1 wrong now and then'
    holds "it is not said how often" grep -qE 'wrong in [1-9][0-9]* of [1-9][0-9]+ runs' out/r.html
}
