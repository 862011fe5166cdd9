# shellcheck shell=bash disable=SC2034,SC2154 # variables and functions of tests/cli/run
#
# Tests of tests/cli/run: what the tool says. JSON that repeats a call, text for people, progress on a terminal.

# ---- JSON

call=(tool=string version=string arguments=array device=string device_uuid=string device_type=string driver=string
    vulkan=string)
shapes=(problem.dtype=string problem.layout=string problem.batch=number problem.heads_q=number problem.heads_kv=number
    problem.seqlen_q=number problem.seqlen_kv=number problem.head_dim_qk=number problem.head_dim_v=number
    problem.causal=boolean problem.window=array problem.scale=number problem.softcap=number problem.kv_lengths=boolean
    options.kernel=string options.tuning=string options.precision=string options.num_splits=number
    options.batch_invariant=boolean options.max_dispatch_gflop=number)

has_json() { holds "the JSON lacks something" "$build/vkattn_json_check" "$@" <stdout; }

test_json_holds_the_call() {
    local files outputs=(--out out/out.npy)
    use_grad g
    succeeds grad "${files[@]}" "${gradients[@]}" --causal --json
    has_json "${call[@]}" "${shapes[@]}" forward.kernel=string
    local files=(--query q.npy --key k.npy --value v.npy)
    make_input mask 37,51
    succeeds run "${files[@]}" "${outputs[@]}" --mask mask.npy --window 5,2 --align -3 --softcap 2 --scale 0.25 --json
    has_json "${call[@]}" "${shapes[@]}" problem.mask.type=string problem.mask.shape.1=number problem.align=number
    holds "the shapes are not those of the files" grep -qF '"heads_q":4,"heads_kv":2,"seqlen_q":37,"seqlen_kv":51,"head_dim_qk":24,"head_dim_v":40' stdout
    holds "the features are not the options'" grep -qF \
        '"causal":false,"align":-3,"window":[5,2],"scale":0.25,"softcap":2.0,"mask":{"type":"float","shape":[37,51]}' stdout
}

# What explain says can be had again from its own arguments.
test_json_repeats() {
    local arguments
    succeeds explain --heads-q 4 --heads-kv 2 --seqlen-q 1k --head-dim 40 --causal --dtype half --json --tuning rows=4
    has_json "${call[@]}" "${shapes[@]}"
    mapfile -t arguments < <(sed 's/.*"arguments":\[\([^]]*\)\].*/\1/' stdout | tr ',' '\n' | tr -d '"')
    cp stdout first
    succeeds "${arguments[@]}"
    holds "the arguments do not repeat the call" cmp stdout first
}

# ---- info

test_info_units() {
    succeeds info --json
    has_json devices.0.units.matrices.0.m=number devices.0.units.matrices.0.a=string devices.0.units.matrices.0.usable=boolean \
        devices.0.units.matrix_kernels.available=boolean devices.0.units.bfloat16.why_not=string \
        devices.0.units.bfloat16_matrices.available=boolean devices.0.units.integer_dot_products.why_not=string
    holds "lavapipe's matrix is not usable" grep -qF \
        '{"m":8,"n":8,"k":8,"a":"f16","b":"f16","c":"f32","result":"f32","usable":true}' stdout
    succeeds info
    holds "the text has no matrix shape" grep -qx '   matrix 8x8x8 f16 x f16 + f32 = f32' stdout
    holds "the text says nothing of bfloat16" grep -qE '^   bfloat16 on matrix units: (yes|no, .+)$' stdout
    holds "the text says nothing of dot products" grep -qE '^   fast integer dot products: (yes|no, .+)$' stdout
    vkattn_two info
    holds "it is not said why SwiftShader has no matrix kernels" grep -qx \
        '   matrix kernels: no, the device has no VK_KHR_cooperative_matrix' stdout
}

# ---- devices that execute nothing

# vkattn_compiling ARGUMENT...: on a driver that compiles for a GPU that is not there.
vkattn_compiling() {
    last_args="$* (compile-only device)"
    code=0
    "$root/tools/on" amd:navi31 -- "$build/vkattn" "$@" >stdout 2>stderr || code=$?
}

test_device_executes_nothing() {
    local files subcommand shape=(--seqlen-q 16 --head-dim 8)
    use_grad g
    local calls=("run ${files[*]:0:6} --out out/out.npy" "grad ${files[*]} ${gradients[*]}" "bench ${shape[*]}"
        "bench ${shape[*]} --pass backward --json" "bench --suite llama" "run ${files[*]:0:6} --out out/out.npy --dtype f16")
    for subcommand in "${calls[@]}"; do
        rm -rf out/*
        # shellcheck disable=SC2086 # nothing in them has a space
        vkattn_compiling $subcommand
        holds "a device that executes nothing is not refused" complained 3 'NAVI31) (radv'
        holds "the line does not say why" grep -q 'executes nothing' stderr
    done
    vkattn_compiling explain "${shape[@]}"
    holds "explain, which executes nothing, does not work there" done_cleanly
}

# ---- progress

# vkattn_terminal ARGUMENT...: on a terminal, which stdout shows; lines of progress come without waiting.
vkattn_terminal() {
    last_args="$* (terminal)"
    code=0
    local command
    printf -v command '%q ' "$root/tools/on" lavapipe -- "$build/vkattn" "$@"
    VKATTN_PROGRESS_AFTER=${patience-0} script -qec "$command" /dev/null </dev/null >stdout 2>stderr || code=$?
    tr '\r' '\n' <stdout >lines
}

# need_cache: makes first_cache, a good file of --pipeline-cache, once for all tests that take one: a new file takes the
# runtime's self-test, of up to 20 s. It is of a run on a terminal, whose lines are kept in first_lines, and its result
# in first_out.npy.
need_cache() {
    [[ ! -e first_cache ]] || return 0
    vkattn_terminal run "${files[@]}" --out first_out.npy --pipeline-cache first_cache
    cp lines first_lines
    holds "a new pipeline cache is an error" test "$code" = 0
    holds "there is a warning, or an error" not grep -q 'vkattn: ' lines
    holds "no pipeline cache was written" test -s first_cache
}

# copy_cache FILE: a good file of --pipeline-cache.
copy_cache() {
    need_cache
    holds "there is no cache to copy" cp first_cache "$1"
}

# says TEXT: the terminal has shown a line of progress that begins so.
says() { holds "there was no line: $1" grep -qF $'\x1b[K'"$1" lines; }

test_progress() {
    local shape=(--seqlen-q 16 --head-dim 8 --repeats 2)
    vkattn_terminal bench "${shape[@]}"
    holds "bench does not work on a terminal" test "$code" = 0
    says 'opening the device, '
    says 'compiling pipelines (first run), '
    says 'warming up, '
    says 'timing 0 %, '
    holds "no time is given" grep -qE 'timing 0 %, [0-9]+ s so far' lines
    holds "the line is not removed before the report" grep -qE $'^(\x1b\\[K)?device ' lines
    need_cache
    cp first_lines lines # of a run with a new pipeline cache
    says 'opening the device, testing kernels (first run) 0 %, '
    says 'reading q.npy, '
    says 'uploading 0 %, '
    says 'running kernel 0 %, '
    says 'writing, '
    local files
    use_grad g
    vkattn_terminal grad "${files[@]}" "${gradients[@]}" --max-dispatch-gflop 0.00008
    says 'running forward 0 %, '
    says 'running backward 0 %, '
    printf 'rows=8,chunk=8\nrows=4,chunk=8\n' >sweep.txt
    vkattn_terminal bench "${shape[@]}" --sweep sweep.txt
    holds "no time is said to be left" grep -qE 'tunings 50 %, timing 0 %, [0-9]+ s left' lines
}

test_no_progress() {
    local patience=3600
    vkattn_terminal run "${files[@]}" "${outputs[@]}"
    holds "short work has a line of progress" not grep -q $'\x1b' lines
    VKATTN_PROGRESS_AFTER=0 succeeds run "${files[@]}" "${outputs[@]}" # with nothing on stderr, which is no terminal
    holds "there is a line of progress without a terminal" not grep -q $'\x1b' stdout
}

# ---- text for people

shows() { holds "the text does not say: $1" grep -qE -- "$1" stdout; }

test_text() {
    succeeds run "${files[@]}" "${outputs[@]}"
    shows '^work +1 dispatch in 1 submission$'
    shows '^plan +[0-9.]+ us$'
    shows '^compile +[0-9.]+ ms for pipelines$'
    shows '^time +[0-9.]+ ms on the device$'
    shows '^memory +[0-9.]+ KB of tensors$'
    shows '^ +60.4 KB more would be whole matrices of scores$' # 2 x 4 x 37 x 51 x 4 bytes
    succeeds run "${files[@]}" "${outputs[@]}" --causal --max-dispatch-gflop 0.0005
    shows '^work +[0-9]+ dispatches in [0-9]+ submissions$'
    succeeds run "${files[@]}" "${outputs[@]}" --json
    has_json plan_us=number compile_us=number
    succeeds bench --seqlen-q 16 --head-dim 8 --repeats 1
    shows '^runs +1 block of [0-9]+ runs?, each run of 1 segment in 1 submission$'
    shows '^plan +[0-9.]+ us for another length, 0 pipelines built$'
    shows '^ceiling +[0-9.]+ GB/s copy, [0-9.]+ GB/s read$'
}

# The text says what was read, and how: who meant something else sees it there.
test_text_of_the_problem() {
    succeeds run "${files[@]}" "${outputs[@]}"
    shows '^problem +f32, batch 2, heads 4/2, 37 queries x 51 keys, head_dim 24/40, bhsd$'
    shows '^scores +scale 0.204124, no softcap$'
    shows '^bounds +not causal, no window$'
    shows '^mask +none$'
    holds "there are kv lengths" not grep -q '^lengths' stdout
    make_input mask 4,37,45 '<f4' c mask:7
    make_input lengths 2 '<i4' c =44,9
    make_input offsets 2 '<i8' c =13,-3
    succeeds run "${files[@]}" "${outputs[@]}" --mask mask.npy --kv-lengths lengths.npy --query-offsets offsets.npy \
        --window 1,-1 --causal --softcap 3 --scale -2
    shows '^scores +scale -2, softcap 3$'
    shows '^bounds +causal, window of 1 key before, row 0 at key -3 to 13 \(--query-offsets\)$'
    shows '^mask +float32, added to the scores, read as \(heads 4, seqlen_q 37, seqlen_kv 45\); it hides keys 45 to 50$'
    shows '^lengths +9 to 44 of 51 keys \(--kv-lengths\)$'
    succeeds run "${files[@]}" "${outputs[@]}" --kv-lengths lengths.npy --window 4,0
    shows "^bounds +not causal, window of 4 keys before and 0 keys after, the last row at each batch's last key "
    make_input mask 51 '|u1' c =1,0
    succeeds run "${files[@]}" "${outputs[@]}" --mask mask.npy --causal
    shows '^bounds +causal, no window, row 0 at key 14 \(bottom-right\)$'
    shows '^mask +uint8, true or 1 attends, false or 0 hides, read as \(seqlen_kv 51\)$'
    succeeds run "${files[@]}" "${outputs[@]}" --causal --align 5
    shows '^bounds +causal, no window, row 0 at key 5 \(--align\)$'
    succeeds run "${files[@]}" "${outputs[@]}" --align 5
    shows '^bounds +not causal, no window, so that it does not matter where row 0 stands'
    make_input mask 1,2,1,51 '|b1' c mask:7
    succeeds run "${files[@]}" "${outputs[@]}" --mask mask.npy
    shows '^mask .*; 2 query heads share each of its heads$'
    local files
    use_grad g
    succeeds grad "${files[@]}" "${gradients[@]}" --causal --align top-left
    shows '^bounds +causal, no window, row 0 at key 0 \(top-left\)$'
}

test_refusals_have_numbers() {
    succeeds explain --seqlen-q 16 --head-dim 8
    shows '^refused +rows: it is for at most 8 query rows here$'
    succeeds explain --seqlen-q 16 --head-dim 8 --heads-q 4 --heads-kv 2
    shows '^refused +rows: it is for at most 8 query rows here, those of the 2 query heads of a key head counted together$'
}

test_explain_memory() {
    local shape=(--batch 2 --heads-q 4 --seqlen-q 100 --seqlen-kv 200 --head-dim 16)
    succeeds explain "${shape[@]}" --json
    holds "other bytes of tensors" grep -qF '"tensor_bytes":310400,' stdout # 8 heads x (2 x 100 + 2 x 200) x 16 x 4, lse
    holds "other bytes of matrices" grep -qF '"matrix_bytes":640000}' stdout # 8 heads x 100 x 200 x 4
    succeeds explain "${shape[@]}" --json --backward --mask-shape 100,200 --mask-type float --dbias
    holds "other bytes of tensors" grep -qF '"tensor_bytes":777600,' stdout # twice as many, lse, mask and dbias
    holds "other bytes of matrices" grep -qF '"matrix_bytes":1280000}' stdout
    succeeds explain "${shape[@]}"
    shows '^tensors +310 KB$'
    shows '^matrices +640 KB that a materialised attention would need, and this plan does not$'
}

# ---- names

fields='(problem|options|backward)\.' # of the library's structs, which are not for users of the tool

test_option_names_in_output() {
    local shape=(--seqlen-q 16 --head-dim 8)
    succeeds explain "${shape[@]}"
    shows '^refused +matrix: only by name: CPUs have no matrix unit, .*$'
    holds "a field is named" not grep -qE "$fields" stdout
    succeeds explain "${shape[@]}" --json
    holds "a field is named in the JSON" not grep -qE "$fields" stdout
    vkattn explain "${shape[@]}" --kernel matrix
    holds "the option is not named" complained 3 'unless --precision says otherwise'
    refuses 2 '--kernel: ' bench "${shape[@]}" --kernel nonesuch
    holds "a field is named" not grep -qE "$fields" stderr
    refuses 2 '--num-splits: ' bench "${shape[@]}" --num-splits 2 --batch-invariant
    holds "a field is named" not grep -qE "$fields" stderr
    printf 'rows=8,chunk=8\n' >sweep.txt
    refuses 2 "--sweep: '-' names no file" bench "${shape[@]}" --sweep -
    refuses 2 --sweep bench "${shape[@]}" --sweep sweep.txt --json
}
