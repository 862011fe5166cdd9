# shellcheck shell=bash disable=SC2154 # variables and functions of tests/cli/run
#
# Tests of tests/cli/run: vkattn bench.

test_bench() {
    local shape=(--heads-q 2 --seqlen-q 16 --head-dim-qk 8 --repeats 2)
    # All that a bench may be told, and that does not exclude each other, at once: a bench takes seconds.
    succeeds bench "${shape[@]}" --seqlen-kv 40 --causal --precision f16 --mask-shape 16,40 --mask-type float \
        --mask-fill random --kv-lengths-given --batch-invariant --max-dispatch-gflop 0.00002 --json
    has_json "${call[@]}" "${shapes[@]}" options.repeats=number options.mask_fill=string
    holds "the JSON lacks something" "$build/vkattn_json_check" device=string driver=string kernel=string \
        scratch_bytes=number time_ms.median=number time_ms.runs_in_block=number tflops=number fma_tflops=number copy_gbps=number read_gbps=number gbps=number \
        matrix_tflops=number rate_ratio=number copy_ratio=number read_ratio=number segments=number dtype=string \
        startup.cold_ms=number startup.warm_ms=number \
        startup.plan_us=number startup.record_us=number <stdout
    holds "another length builds pipelines" grep -q '"pipelines_built":0' stdout
    holds "the JSON has not the precision" grep -q '"precision":"float16"' stdout
    holds "an option is not there" grep -qF '"batch_invariant":true' stdout
    holds "the plan was not cut" [ "$(json_number segments)" -gt 1 ]
    succeeds bench "${shape[@]}" --dtype f16 --kernel matrix
    holds "no rate" grep -qE '^rate .*TFLOP/s' stdout
    holds "the rate is not held to that of the matrix unit" grep -qE '^rate .* % of the float16 matrix rate' stdout
    vkattn_two bench "${shape[@]}" --dtype f16 --json --device swiftshader
    holds "there is a matrix rate without a matrix unit" "$build/vkattn_json_check" matrix_tflops=null rate_ratio=number <stdout
    holds "the JSON has not the dtype" grep -q '"dtype":"f16"' stdout
    succeeds bench "${shape[@]}" --mask-shape 16,16 --mask-fill random --pass backward
    holds "no bytes a second" grep -qE '^traffic .*GB/s' stdout
    holds "no start" grep -qE '^startup .* with a pipeline cache' stdout
    printf '# two tunings\nrows=8,chunk=8\n\nrows=nonsense\n' >sweep.txt
    succeeds bench "${shape[@]}" --sweep sweep.txt
    holds "the sweep has no rate" grep -qE 'TFLOP/s .* % of float32 FMA  rows=8,chunk=8' stdout
    shows '^refused +rows=nonsense: --tuning: ' # what it refused, by the name of the option
    holds "a field is named" not grep -qE "$fields" stdout
}

# Compares with a file whose times were changed: of three lengths one is then faster, one slower, and one as it was.
test_bench_compare() {
    local shape=(--heads-q 2 --seqlen-q 16 --head-dim 8 --repeats 4) lengths=(--seqlen-kv 8..32)
    local then='"median":X,"min":X,"max":X,"lower":X,"upper":X,"blocks":20' wrong
    printf '{"tool":"another","cases":[{"name":"seqlen_kv 8","ms":1,"tflops":0.001,"gbps":1},%s,%s]}\n' \
        '{"name":"seqlen_kv 16","ms":1,"tflops":0,"gbps":1}' '{"name":"seqlen_kv 99999999999999999999999"}' >peer.json
    succeeds bench "${shape[@]}" "${lengths[@]}" --json --report out/b.html --peer peer.json
    holds "the page has not two plots" [ "$(grep -c '<svg' out/b.html)" -eq 2 ]
    holds "the peer is not in a plot" grep -qF 'seqlen_kv, another' out/b.html
    has_json "${call[@]}" suite=string interrupted=boolean
    holds "there are not three lengths" [ "$(grep -o '"name":"seqlen_kv [0-9]*"' stdout | wc -l)" -eq 3 ]
    # A thousand seconds and a nanosecond are further from any time here than noise reaches.
    sed -E 's/("name":"seqlen_kv 8".*"time_ms":\{)[^}]*(\}.*"name":"seqlen_kv 16")/\1'"${then//X/1e6}"'\2/
        s/("name":"seqlen_kv 32".*"time_ms":\{)[^}]*/\1'"${then//X/1e-6}/" stdout >then.json
    holds "the file has no other times" grep -q '"median":1e-6' then.json
    vkattn bench "${shape[@]}" "${lengths[@]}" --compare then.json
    holds "what is slower does not end with 5" [ "$code" -eq 5 ]
    shows '^seqlen_kv 8 .* faster$'
    shows '^seqlen_kv 32 .* slower$'
    shows '^[12] slower, [12] faster, [01] equal, 0 refused, 0 new, 0 gone; median ratio [0-9.]+$'
    vkattn bench "${shape[@]}" --seqlen-kv 4..8 --compare then.json --csv
    holds "only what is faster or new does not end with 0" [ "$code" -eq 0 ]
    holds "CSV has not a line of names and one a length" [ "$(wc -l <stdout)" -eq 3 ]
    shows '^case,median_ms,min_ms,max_ms,tflops,gbps,kernel,tuning_row,refused,earlier_ms,ratio,noise,verdict$'
    shows '^seqlen_kv 4,[0-9.e-]+,[0-9.e-]+,[0-9.e-]+,.*,,,,$'
    shows '^seqlen_kv 8,[0-9.e-]+,[0-9.e-]+,[0-9.e-]+,.*,faster$'
    vkattn bench "${shape[@]}" --seqlen-kv 8..16 --kernel matrix --compare then.json # which has no float32
    holds "what is refused now does not end with 5" [ "$code" -eq 5 ]
    shows '^0 slower, 0 faster, 0 equal, 2 refused, 0 new, 1 gone; median ratio none$'
    refuses 2 head_dim_qk bench --heads-q 2 --seqlen-q 16 --head-dim 16 "${lengths[@]}" --compare then.json
    refuses 2 heads_q bench --heads-q 4 --seqlen-q 16 --head-dim 8 "${lengths[@]}" --compare then.json
    refuses 2 block_map bench "${shape[@]}" "${lengths[@]}" --block-map ones --compare then.json
    refuses 2 --report bench "${shape[@]}" --report out/one.html
    refuses 2 --report bench "${shape[@]}" "${lengths[@]}" --report missing/b.html
    refuses 2 --peer bench "${shape[@]}" "${lengths[@]}" --report out/b.html --peer missing.json
    echo '{"tool":"another","cases":[{"name":5}]}' >wrong.json
    refuses 2 --peer bench "${shape[@]}" "${lengths[@]}" --report out/b.html --peer wrong.json
    refuses 2 'none of these cases' bench "${shape[@]}" --seqlen-kv 1..4 --compare then.json
    # One problem, beside itself and beside others.
    succeeds bench "${shape[@]}" --json
    cp stdout then.json
    vkattn bench "${shape[@]}" --compare then.json
    holds "it ends neither with 0 nor with 5" [ "$code" -eq 0 -o "$code" -eq 5 ]
    shows ', 0 refused, 0 new, 0 gone; median ratio '
    refuses 2 causal bench "${shape[@]}" --causal --compare then.json
    refuses 2 dtype bench "${shape[@]}" --dtype f16 --compare then.json
    sed 's/"device":"[^"]*"/"device":"another"/' then.json >other.json
    refuses 2 device bench "${shape[@]}" --compare other.json
    for wrong in '' '[1]' '{"tool":"vkattn"}' '{"tool":5,"time_ms":1}' '{"tool":"vkattn","cases":[{"name":1}, 2]}' \
        "{\"tool\":\"vkattn\",\"time_ms\":{${then//X/0}}}" "{\"tool\":\"vkattn\",\"time_ms\":{${then//X/1e308}}}" \
        '{"tool":"vkattn","time_ms":{"median":3,"min":1,"max":5,"lower":4,"upper":2,"blocks":20}}'; do
        echo "$wrong" >other.json
        refuses 2 --compare bench "${shape[@]}" --compare other.json
    done
    refuses 2 --compare bench "${shape[@]}" --compare missing.json
    refuses 2 '--repeats: is 3' bench "${shape[@]:0:6}" --repeats 3 --compare then.json
    sed -E 's/("options":)\{[^}]*\}/\1"x"/' then.json >other.json
    refuses 2 --compare bench "${shape[@]}" --compare other.json
    # The earlier time's quartiles are as far apart as its median is large, so three errors of the median of 20 are 0.62
    # of it. How far apart the new times are is this machine's affair, so their error is worked out from what is printed.
    then='"median":1e6,"min":1,"max":2e6,"lower":5e5,"upper":1.5e6,"blocks":20'
    sed -E 's/("time_ms":\{)[^}]*/\1'"$then/" then.json >wide.json
    vkattn bench "${shape[@]}" --compare wide.json --json
    shows '"verdict":"faster"'
    holds "the noise is not three errors of the two medians" awk -v RS='[,{}]' -F: '
        { value[$1] = $2 }
        END {
            few = value["\"blocks\""] < 8
            distance = few ? value["\"max\""] - value["\"min\""] : value["\"upper\""] - value["\"lower\""]
            now = 1.253 / 1.349 * distance / value["\"median\""] / sqrt(value["\"blocks\""])
            wanted = 3 * sqrt(0.20770 ^ 2 + now ^ 2)
            exit !(value["\"noise\""] > 0.999 * wanted && value["\"noise\""] < 1.001 * wanted)
        }' stdout
    refuses 2 --seqlen-kv bench "${shape[@]}" --seqlen-kv 32..8
    refuses 2 --seqlen-kv bench "${shape[@]}" --seqlen-kv 8..24
    refuses 2 --seqlen-kv bench "${shape[@]}" --seqlen-kv 8..
    refuses 2 --seqlen-kv bench --heads-q 2 --seqlen-q 8..16 --head-dim 8 --seqlen-kv 8..16
    refuses 2 --mask-shape bench "${shape[@]}" --seqlen-kv 8..16 --mask-shape 16,16
}
