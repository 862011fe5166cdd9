# shellcheck shell=bash disable=SC2034,SC2154 # variables and functions of tests/cli/run
#
# Tests of tests/cli/run: vkattn conformance. What it must find is planted: vkattn_mutant is the tool with modules that
# are read from a folder (tests/mutants/spirv.cpp).

# plant FILE SCRIPT MODULE...: compiles these modules of the shaders with a fault into the folder `modules`.
plant() {
    local file=$1 script=$2 module form macros
    rm -rf faulty modules
    cp -r "$root/shaders" faulty
    mkdir modules
    sed -i -e "$script" "faulty/$file"
    for module in "${@:3}"; do
        form=${module}_f32_rolled
        read -ra macros < <(grep "^$form|" "$build/src/vkattn_spirv_modules/$module.txt" | cut -d'|' -f2)
        "$sdk/bin/glslc" --target-env=vulkan1.2 -fshader-stage=compute -I faulty "${macros[@]}" "faulty/$module.comp" \
            -o "modules/$form.spv"
    done
}

# with_fault ARGUMENT...: vkattn with the modules of that folder.
with_fault() {
    last_args="$* (with a planted fault)"
    code=0
    VKATTN_SPIRV=$PWD/modules start "$build/vkattn_mutant" "$@" >stdout 2>stderr || code=$?
}

# printed_cases: of the commands that repeat failures.
printed_cases() { sed -n "s/^ *vkattn conformance .*--case '\(.*\)'$/\1/p" stdout; }

# driver_names: of all driver checks.
driver_names() { start "$build/vkattn" conformance --list --filter 'driver/*'; }

# plant_in_check MODULE SCRIPT: compiles a module of the driver checks with a fault into the folder `modules`.
plant_in_check() {
    local kernel macros
    rm -rf faulty modules
    cp -r "$root/shaders" faulty
    mkdir modules
    kernel=${1%%_f[13]*}
    sed -i -e "$2" "faulty/$kernel.comp"
    not cmp -s "faulty/$kernel.comp" "$root/shaders/$kernel.comp" || fail "the fault changes nothing: $2"
    read -ra macros < <(grep "^$1|" "$build/vkattn_cli_objects_modules/$kernel.txt" | cut -d'|' -f2)
    "$sdk/bin/glslc" --target-env=vulkan1.2 -fshader-stage=compute -I faulty "${macros[@]}" "faulty/$kernel.comp" \
        -o "modules/$1.spv"
}

# names_fault CHECK TEXT MODULE SCRIPT: with this fault the driver check fails, and says so.
names_fault() {
    plant_in_check "$3" "$4"
    with_fault conformance --filter "driver/$1"
    holds "the exit code is $code, not 4" [ "$code" = 4 ]
    holds "$1 does not say '$2'" grep -qE "^    wrong in [0-9]+ of [0-9]+ dispatches; the first is number .*$2" stdout
}

test_conformance_smoke() {
    succeeds conformance --level smoke --json out/r.json --junit out/r.xml --report out/r.html
    holds "the last line does not count" grep -qE '^[1-9][0-9]* passed, 0 failed, [0-9]+ skipped in [0-9.]+ s$' stdout
    holds "no kernel of matrix units has run" grep -qE '^forward/matrix +matrix +[1-9]' stdout
    holds "the JSON lacks something" "$build/vkattn_json_check" level=string devices.0.device=string \
        devices.0.passed=number devices.0.failed=number devices.0.interrupted=boolean devices.0.checks.0.name=string \
        devices.0.checks.0.status=string devices.0.checks.0.kernel=string devices.0.checks.0.worst=number <out/r.json
    holds "the XML has no test case" grep -q '<testcase classname="backward/heads"' out/r.xml
    holds "the page has no heat map" grep -q 'class="cell"' out/r.html
    holds "the page lacks the profile" grep -q 'driverID=' out/r.html
    holds "the page has no date" grep -q "$(date -u +%Y-)[0-9-]* [0-9:]* UTC" out/r.html
}

test_conformance_choice() {
    local shard
    succeeds conformance --list --level smoke
    sort stdout >all
    : >shards
    for shard in 1/3 2/3 3/3; do
        succeeds conformance --list --level smoke --shard "$shard"
        cat stdout >>shards
    done
    sort shards | cmp -s - all || fail "the shards are not the whole"
    succeeds conformance --list --level full --filter 'backward/heads/*/materialized'
    holds "the filter chooses something else" not grep -qv '^backward/heads/.*/materialized$' stdout
    succeeds conformance --list --level full
    holds "two checks have one name" test -z "$(sort stdout | uniq -d)"
    refuses 2 --level conformance --level most
    refuses 2 --shard conformance --shard 3/2
    refuses 2 --shard conformance --shard 1
    refuses 2 --filter conformance --filter 'no such check'
    refuses 2 --case conformance --case 's=7'
    refuses 2 "unknown word 'foo'" conformance --case 'forward foo=7'
    refuses 2 --json conformance --level smoke --json no/such/folder.json
    refuses 2 --fuzz conformance --fuzz 0
    refuses 2 --fuzz conformance --fuzz nan
    refuses 2 '--case: a tensor of this case' conformance --case 'forward sq=1 skv=99999999 d=256'
    refuses 2 --filter conformance --fuzz 1 --filter '*'
    refuses 2 --list conformance --fuzz 1 --list
    refuses 2 --seed conformance --seed 7
    refuses 2 --junit conformance --level smoke --json out/r --junit ./out/../out/r
    refuses 2 --case conformance --case ''
    refuses 2 "no kernel is named 'banana'" conformance --case 'forward s=7 kernel=banana'
    refuses 2 'the oracle would need' conformance --case 'forward s=20000 h=1000'
    refuses 2 'parts are of combines' conformance --case 'forward s=7 parts=2 nonfinite'
    refuses 2 'company is at most' conformance --case 'forward s=5 batch_invariant company=4294967295'
    refuses 2 'the parts have over' conformance --case 'combine parts=4096 h=100 sq=1000 dv=64'
    refuses 2 'the oracle would need' conformance --case 'forward b=2 s=200000 d=64 far=batch'
    refuses 2 'nonfinite is for sequences' conformance --case 'forward sq=1 skv=60000 nonfinite'
    refuses 2 "'causal' takes no value" conformance --case 'forward s=7 causal=1'
    refuses 2 'far=part is of combines' conformance --case 'forward b=2 s=7 parts=2 far=part'
    refuses 2 'company is of forward cases' conformance --case 'backward s=7 company=3 batch_invariant'
    refuses 2 --list conformance --list --json out/r.json
    refuses 2 'not the name of a file' conformance --level smoke --json ''
    vkattn conformance --case 'forward s=7 kernel=matrix' --report out/r.html
    holds "the page does not say why a check was skipped" grep -q '<p class="soft">skipped 1: ' out/r.html
    ((code == 4)) || fail "a run in which nothing passed has the exit code $code, not 4"
    refuses 3 "no device" conformance --device nonesuch --level smoke --json out/r.json
    holds "a report of nothing" not test -e out/r.json
    vkattn_two conformance --device all --case 'forward s=7 d=8 causal'
    holds "two devices do not pass" test "$(grep -c '^1 passed, 0 failed' stdout)" = 2
}

test_conformance_driver() {
    local name
    succeeds conformance --list --level smoke
    driver_names >names
    head -n "$(wc -l <names)" stdout | cmp -s - names || fail "the driver's checks do not come first"
    succeeds conformance --filter 'driver/*' --json out/r.json --junit out/r.xml --report out/r.html
    holds "a driver check is not in the table" test "$(grep -cFf names stdout)" -ge "$(wc -l <names)"
    holds "it is not said why one was skipped" grep -qE '^skipped 1: the device has no 16-bit dot products' stdout
    while read -r name; do
        holds "a report lacks $name" grep -qF "$name" out/r.json
        holds "the XML lacks $name" grep -qF "$name" out/r.xml
        holds "the page lacks $name" grep -qF "$name" out/r.html
    done <names
    succeeds conformance --case driver-near-square-workgroups
    refuses 2 '--case: driver-denormals takes no words' conformance --case 'driver-denormals s=7'
    refuses 2 "'driver-magic' is none of" conformance --case driver-magic
}

# A driver check names what is wrong.
test_conformance_driver_faults() {
    names_fault shared-arrays-sized-by-constants 'bytes in arrays of .*expected 0x' driver_shared_f32 \
        's/words\[i\] = given/words[i \& ~1u] = given/'
    names_fault near-square-workgroups 'x .* invocations: .*gl_LocalInvocationIndex' driver_workgroup_f32 \
        's/= \(gl_LocalInvocationID.y.*\);/= (\1 + 1) % PLACES;/'
    names_fault barriers-in-loops 'rounds: element .*expected 0x' driver_barriers_f32 's/near \* 5 + far/near * 5/'
    names_fault long-loops 'element [0-7] is 0x.*expected 0x' driver_loops_f32 \
        's/round < p.count; round++/round < min(p.count, 65); round++/'
    names_fault atomic-stores-of-halves 'expected 0x' driver_halves_f16_packed \
        's/atomicOr(\(.*\), bits << shift)/\1 = bits << shift/'
    names_fault 16-bit-stores-side-by-side 'expected 0x' driver_halves_f16 's/place % 5 != 4/place % 5 < 3/'
    names_fault subgroup-shuffles-of-vectors 'component 3 of a shuffle by 1' driver_shuffles_f32 \
        's/subgroupShuffleXor(own, mask)/vec4(subgroupShuffleXor(own, mask).xyz, own.w)/'
    names_fault matrices-across-subgroups 'expected -?[0-9]+$' driver_matrix_f16 's/(s + step) % SUBGROUPS/s/'
    names_fault denormals 'of the float16 0x[08]' driver_denormals_f32 \
        's/(unpackHalf2x16(word))/(unpackHalf2x16((word \& 0x7c00) == 0 ? word \& ~0xffffu : word))/'
    names_fault exponents-and-logarithms 'exp2 of' driver_exponents_f32 's/exp2(x)/exp2(x) * 1.0001/'
    names_fault far-addresses 'bytes apart' driver_far_f32 's/? place.x : place.y/? place.x : 0/'
}

# The driver leaves out one dispatch of some: each check sees it, and says how often.
test_conformance_driver_flaky() {
    vkattn_flaky 7 conformance --filter 'driver/*'
    holds "a flaky driver is right" [ "$code" = 4 ]
    holds "a check passes" grep -qE '^0 passed, [1-9]' stdout
    holds "it is not said how often" test "$(grep -c '^FAILED driver/' stdout)" = \
        "$(grep -cE '^    wrong in [1-9][0-9]? of [1-9][0-9]+ dispatches; .*\(not written\)' stdout)"
    vkattn_flaky 7 conformance --filter 'driver/barriers*' --hours 0.5 --until-failure
    holds "a flaky driver is right for half an hour" [ "$code" = 4 ]
    holds "it is not said in how many runs" grep -qE '^    wrong in [1-9][0-9]* of [1-9][0-9]* runs?$' stdout
}

# Rounds are counted, and the first one is whole.
test_conformance_hours() {
    local hours
    succeeds conformance --filter 'driver/barriers*' --hours 0.001 --json out/r.json
    holds "it is not said how many rounds there were" \
        grep -qE '^1 passed, 0 failed, 0 skipped in [0-9.]+ s, in ([2-9]|[1-9][0-9]+) rounds' stdout
    holds "the JSON lacks something" "$build/vkattn_json_check" devices.0.rounds=number devices.0.checks.0.runs=number \
        devices.0.checks.0.wrong=number <out/r.json
    succeeds conformance --case 'forward s=7 d=8' --hours 1e-9
    holds "a short time is not a round" grep -qE ' in 1 round$' stdout
    for hours in 0 -1 nan inf 1e400 many ''; do refuses 2 --hours conformance "--hours=$hours"; done
    refuses 2 --hours conformance --hours 1 --list
    refuses 2 --hours conformance --hours 1 --fuzz 1
}

test_conformance_failure() {
    plant lib/sequences.glsl 's/i + w\.hi + 1/i + w.hi + 2/' forward_tiles
    with_fault conformance --level standard --filter 'forward/causal/*' --json out/r.json --junit out/r.xml \
        --report out/r.html
    ((code == 4)) || fail "the exit code is $code, not 4"
    holds "the failure has no name" grep -q '^FAILED forward/causal/' stdout
    holds "the worst element is not told" \
        grep -qE '^    at the start: out\[[0-9, ]+\] = .*the oracle has .*exceeds' stdout
    holds "XML without the failure" grep -q '<failure message=' out/r.xml
    holds "a page without the failure" grep -q '<h2>Failures</h2>' out/r.html
    with_fault conformance --level standard --filter 'forward/causal/*' --until-failure
    ((code == 4)) || fail "the exit code is $code, not 4"
    holds "it goes on after a failure" grep -q '^interrupted: ' stdout
    with_fault conformance --level standard --filter 'forward/causal/*'
    # The command that is printed repeats it.
    local line
    line=$(printed_cases | head -n 1)
    with_fault conformance --case "$line"
    ((code == 4)) || fail "the printed case does not fail: $line"
    vkattn conformance --case "$line"
    ((code == 0)) || fail "the printed case fails without the fault: $line"
}

# Random problems find it, too, and one of a few words is left.
test_conformance_fuzz() {
    plant lib/sequences.glsl 's/i + w\.hi + 1/i + w.hi + 2/' forward_tiles
    with_fault conformance --fuzz 2 --seed 40
    holds "the exit code is $code, not 4" [ "$code" = 4 ]
    local line
    line=$(printed_cases | awk '{ print NF, $0 }' | sort -n | head -n 1)
    holds "the smallest case has ${line%% *} words: ${line#* }" [ "${line%% *}" -le 8 ]
    with_fault conformance --case "${line#* }"
    holds "the smallest case does not fail: ${line#* }" [ "$code" = 4 ]
}

# A run that was interrupted says so, and its files are whole.
test_conformance_interrupted() {
    local pid i caught
    last_args="conformance --level full, interrupted"
    "$root/tools/on" lavapipe -- "$build/vkattn" conformance --level full --json out/r.json \
        --junit out/r.xml --report out/r.html >stdout 2>stderr &
    pid=$!
    # Bash starts it with SIGINT ignored. So this is SIGTERM, 15, once the program (which tools/on becomes) catches it.
    for ((i = 0; i < 600; i++)); do
        caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$pid/status")
        if (((0x$caught >> 14 & 1) != 0)); then break; fi
        sleep 0.1
    done
    sleep 1 # for checks to begin
    kill -TERM "$pid"
    code=0
    wait "$pid" || code=$?
    ((code == 4)) || fail "the exit code is $code, not 4"
    holds "the report does not say that it is partial" grep -q '^interrupted: ' stdout
    holds "the JSON is not whole" "$build/vkattn_json_check" devices.0.interrupted=boolean <out/r.json
    holds "the JSON does not say that it is partial" grep -q '"interrupted":true' out/r.json
    holds "the XML takes checks that were not run for good" grep -q '<error message="not run"/>' out/r.xml
    holds "the page does not say that it is partial" grep -q 'checks were not run' out/r.html
    holds "it is not said that checks are being finished" grep -q 'finishing the checks under way' stderr
}
