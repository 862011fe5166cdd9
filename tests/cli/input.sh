# shellcheck shell=bash disable=SC2034,SC2154 # variables and functions of tests/cli/run
#
# Tests of tests/cli/run: what people type. Names of files, types, numbers and options, and a standard output that is
# full.

# ---- files

# spares FILE TEXT ARGUMENT...: refused before a device is looked for, with a line that has TEXT in it; FILE stays as
# it was.
spares() {
    cp "$1" spared.npy
    refuses 2 "$2" "${@:3}" --device nonesuch
    holds "$1 was touched" cmp "$1" spared.npy
}

test_outputs_are_no_inputs() {
    local argument path features=(--mask mask.npy --kv-lengths lengths.npy --query-offsets offsets.npy)
    make_input mask 51 '<f4'
    make_input lengths 2 '<i4' c =5,6
    make_input offsets 2 '<i4' c =0,1
    local -A file=([--query]=q.npy [--key]=k.npy [--value]=v.npy [--mask]=mask.npy [--kv-lengths]=lengths.npy
        [--query-offsets]=offsets.npy)
    for argument in "${!file[@]}"; do
        path=${file[$argument]}
        spares "$path" "--out: is the same file as $argument," run "${files[@]}" "${features[@]}" --out "$path"
    done
    spares q.npy '--lse: is the same file as --query,' run "${files[@]}" --out out/out.npy --lse q.npy
    spares q.npy '--pipeline-cache: is the same file as --query,' run "${files[@]}" --out out/out.npy --pipeline-cache q.npy
    refuses 2 '--pipeline-cache: is the same file as --out' run "${files[@]}" --out out/out.npy --pipeline-cache out/out.npy
    ln -sf v.npy link.npy
    mkdir -p away
    ln -sfn "$PWD" away/here
    for path in link.npy ./v.npy away/../v.npy away/here/v.npy "$PWD/v.npy"; do
        spares v.npy '--out: is the same file as --value,' run "${files[@]}" --out "$path"
    done
    spares v.npy '--out: is the same file as --value,' run "${files[@]:0:4}" --value link.npy --out v.npy
    holds "the link is no link any more" test -L link.npy
}

test_gradients_are_no_inputs() {
    local files name argument
    use_grad g
    make_input lse 2,4,19
    make_input dlse 2,4,19
    make_input o 2,4,19,16
    make_input mask 27 '<f4' c mask:7
    local all=("${files[@]}" --dlse dlse.npy --out o.npy --lse lse.npy --mask mask.npy)
    local -A file=([--query]=q_g.npy [--key]=k_g.npy [--value]=v_g.npy [--dout]=do_g.npy [--dlse]=dlse.npy [--out]=o.npy
        [--lse]=lse.npy [--mask]=mask.npy)
    for argument in "${!file[@]}"; do
        spares "${file[$argument]}" "--dq: is the same file as $argument," grad "${all[@]}" --dq "${file[$argument]}" \
            --dk out/dk.npy --dv out/dv.npy
    done
    spares k_g.npy '--dk: is the same file as --key,' grad "${all[@]}" --dq out/dq.npy --dk k_g.npy --dv out/dv.npy
    spares k_g.npy '--dv: is the same file as --key,' grad "${all[@]}" --dq out/dq.npy --dk out/dk.npy --dv ./k_g.npy
    spares mask.npy '--dbias: is the same file as --mask,' grad "${all[@]}" "${gradients[@]}" --dbias mask.npy
}

test_dash_is_no_file() {
    local argument text="'-' names no file"
    for argument in --query --key --value; do
        refuses_file "$argument" -
        holds "the line does not say why" grep -qF -- "$argument: $text" stderr
    done
    refuses 2 "--out: $text" run "${files[@]}" --out -
    refuses 2 "--lse: $text" run "${files[@]}" --out out/out.npy --lse -
    refuses 2 "--mask: $text" run "${files[@]}" --out out/out.npy --mask -
    refuses 2 "--pipeline-cache: $text" run "${files[@]}" --out out/out.npy --pipeline-cache -
    holds "a file of that name was written" test ! -e ./-
    local files
    use_grad g
    refuses 2 "--dv: $text" grad "${files[@]}" --dq out/dq.npy --dk out/dk.npy --dv -
    refuses 2 "--dout: $text" grad "${files[@]:0:6}" --dout - "${gradients[@]}"
}

test_folder_of_outputs() {
    local argument option
    refuses 2 '--out: nodir/o.npy: there is no folder nodir' run "${files[@]}" --out nodir/o.npy --device nonesuch
    refuses 2 '--lse: q.npy/l.npy: there is no folder q.npy' run "${files[@]}" --out out/o.npy --lse q.npy/l.npy
    local files
    use_grad g
    refuses 2 '--dk: nodir/dk.npy: there is no folder nodir' grad "${files[@]}" --dq out/dq.npy --dk nodir/dk.npy \
        --dv out/dv.npy --device nonesuch
}

# All files of one layout, read as the other.
test_layout_hint() {
    local turned=(--query turned_q.npy --key turned_k.npy --value turned_v.npy)
    make_input turned_q 2,37,4,24
    make_input turned_k 2,51,2,24
    make_input turned_v 2,51,2,40
    refuses 2 'which is --layout bshd' run "${turned[@]}" --out out/out.npy
    refuses 2 'without --layout bshd' run "${files[@]}" --out out/out.npy --layout bshd
    make_input turned_v 2,52,2,40
    refuses 2 --value run "${turned[@]}" --out out/out.npy
    holds "a layout was suggested that does not help" not grep -q -- --layout stderr
}

# said_once TEXT: the last call succeeded, and said one line that has TEXT in it.
said_once() { ((code == 0)) && (($(wc -l <stderr) == 1)) && [[ $(<stderr) == *"$1"* ]]; }

# runs_with_a_line TEXT ARGUMENT...
runs_with_a_line() {
    vkattn "${@:2}"
    holds "not done with one line that says '$1'" said_once "$1"
}

# What a narrower type makes infinite is counted, wherever a file is converted.
test_overflow() {
    local infinite='too large for float16 and became infinite; the first is'
    make_input large_q 2,4,37,24 '<f4' c =0,1,1e5,65519,-65520
    make_input large_v 2,2,51,40 '<f8' c =3e5
    make_input large_mask 1,51 '<f4' c =0,0,-1e9,-inf
    runs_with_a_line "--query: 2841 numbers were $infinite 100000 at [0, 0, 0, 2]" run --query large_q.npy "${files[@]:2}" \
        --out out/out.npy --dtype f16
    runs_with_a_line "--mask: 13 numbers were ${infinite/;/, of which -inf hides a key;} -1e+09 at [0, 2]" \
        run "${files[@]}" --out out/out.npy --dtype f16 \
        --mask large_mask.npy
    runs_with_a_line "--out: 11840 numbers were $infinite 300000 at [0, 0, 0, 0]" run "${files[@]:0:4}" --value large_v.npy \
        --out out/out.npy --dtype f32 --out-dtype f16
    make_input large_v 2,2,51,40 '<f8' c =1e39,1,-inf
    runs_with_a_line "--value: 2720 numbers were too large for float32 and became infinite; the first is 1e+39 at [0, 0, 0, 0]" \
        run "${files[@]:0:4}" --value large_v.npy --out out/out.npy --dtype f32
    make_input large_v 2,2,51,40 '<f8' c =65519,inf
    succeeds run "${files[@]:0:4}" --value large_v.npy --out out/out.npy --dtype f16
}

# ---- types

# Without --out-dtype, out has the type of the query's file, whatever was computed in.
test_out_dtype() {
    local suffix type
    local -A descrs=([f2]='<f2' [f4]='<f4' [f8]='<f8' [b]='<V2')
    for suffix in f2 f4 f8 b; do
        rm -rf out/*
        succeeds run --query "q_$suffix.npy" --key k_f2.npy --value v_b.npy "${outputs[@]}" --dtype f32
        holds "out has not the type of the query's file" has_header out/out.npy "'${descrs[$suffix]}'"
        holds "lse is not float32" has_header out/lse.npy "'<f4'"
    done
    succeeds run "${files[@]}" --out out/wide.npy --dtype f16
    holds "float32 files do not get a float32 out" has_header out/wide.npy "'<f4'"
    succeeds run "${files[@]}" --out out/narrow.npy --dtype f16 --out-dtype f16
    holds "--out-dtype f16 is not float16" has_header out/narrow.npy "'<f2'"
    succeeds run --query q_f2.npy --key k_f2.npy --value v_f2.npy --out out/same.npy
    holds "--dtype f16 is not what float16 files give" cmp out/narrow.npy out/same.npy
    succeeds run --query q_f2.npy --key k_f2.npy --value v_f2.npy --out out/same.npy --out-dtype f32
    holds "out was rounded otherwise than in --dtype f16" cmp out/wide.npy out/same.npy
    make_input big 2,4,37,24 '>f4'
    succeeds run --query big.npy --key k.npy --value v.npy --out out/big.npy --dtype f16
    holds "out has not the byte order of the query's file" has_header out/big.npy "'>f4'"
    succeeds run --query big.npy --key k.npy --value v.npy --out out/big.npy --out-dtype f16
    holds "another type has kept the byte order" has_header out/big.npy "'<f2'"
    for type in f64 '' int; do refuses 2 --out-dtype run "${files[@]}" --out out/out.npy "--out-dtype=$type"; done
}

test_grad_out_dtype() {
    local files name
    use_grad g
    make_input mask 27 '<f4' c mask:7
    rm -rf out/*
    succeeds grad "${files[@]}" "${gradients[@]}" --dbias out/dbias.npy --mask mask.npy --out-dtype Half
    for name in dq dk dv dbias; do
        holds "$name is not float16" has_header "out/$name.npy" "'<f2'"
    done
    refuses 2 --out-dtype grad "${files[@]}" "${gradients[@]}" --out-dtype int
}

# NumPy without ml_dtypes writes what it has read of bfloat16 as '|V2'.
test_bfloat16_through_numpy() {
    local name
    for name in q k v; do sed "1s/'<V2'/'|V2'/" "${name}_b.npy" >"raw_$name.npy"; done
    succeeds run --query q_b.npy --key k_b.npy --value v_b.npy --out out/first.npy
    succeeds run --query raw_q.npy --key raw_k.npy --value raw_v.npy --out out/out.npy
    holds "'|V2' is not bfloat16" cmp out/out.npy out/first.npy
    make_input object 2,4,37,24 '|O'
    refuses 2 "--query: object.npy: dtype '|O' is not supported; tensors are of float16" run --query object.npy \
        "${files[@]:2}" --out out/out.npy
}

# A type goes by several names, in any case.
test_dtype_names() {
    local shape=(--seqlen-q 64 --head-dim 16 --json) name first
    for names in 'f32 float32 fp32 float single FP32' 'f16 float16 fp16 half HALF' 'bf16 bfloat16 BF16'; do
        first=${names%% *}
        for name in $names; do
            succeeds explain "${shape[@]}" --dtype "$name"
            sed -i 's/"arguments":\[[^]]*\],//' stdout
            [[ $name != "$first" ]] || cp stdout first
            holds "--dtype $name is not $first" cmp stdout first
        done
        [[ ! -e before ]] || holds "--dtype $first is no other type" not cmp -s first before
        cp first before
    done
    succeeds run "${files[@]}" --out out/out.npy --dtype Float16 --out-dtype BFloat16
    holds "--out-dtype BFloat16 is not bfloat16" has_header out/out.npy "'<V2'"
    succeeds explain "${shape[@]}" --precision half
    holds "--precision half is not float16" grep -q '"precision":"float16"' stdout
}

# ---- numbers

# alike SUBCOMMAND ONE OTHER: both print the same; their words are split.
alike() {
    # shellcheck disable=SC2086 # several words
    succeeds $1 $2
    cp stdout one
    # shellcheck disable=SC2086
    succeeds $1 $3
    holds "'$2' is not '$3'" cmp stdout one
}

test_number_suffixes() {
    local value
    alike 'explain --head-dim 8' '--seqlen-q 4K --seqlen-kv 1M' '--seqlen-q 4096 --seqlen-kv 1048576'
    alike 'explain --head-dim 8 --seqlen-q 8' '--batch 1k --heads-q 1k --heads-kv 1k' \
        '--batch 1024 --heads-q 1024 --heads-kv 1024'
    alike 'explain --head-dim 8 --seqlen-q 4k' '--window 1k,0 --mask-shape 4k,4k' \
        '--window 1024,0 --mask-shape 4096,4096'
    for value in k 4kk 4kb 4G 1.5k -1k 4096M 9223372036854775807k '4 k' many; do
        refuses 2 --seqlen-q explain --head-dim 8 "--seqlen-q=$value"
    done
    refuses 2 --batch explain --seqlen-q 8 --head-dim 8 --batch=4x
}

test_head_dim() {
    alike 'explain --seqlen-q 64' '--head-dim 40' '--head-dim-qk 40 --head-dim-v 40'
    alike 'explain --seqlen-q 64' '--head-dim 40 --head-dim-v 24' '--head-dim-qk 40 --head-dim-v 24'
    refuses 2 --head-dim-qk explain --seqlen-q 64 --head-dim 8 --head-dim-qk 8
}

# ---- names of options and subcommands

test_typos() {
    local run=(run "${files[@]}" --out out/out.npy) shape=(--seqlen-q 8 --head-dim 8)
    refuses 2 '--casual: is no option of run; did you mean --causal?' "${run[@]}" --casual
    refuses 2 'did you mean --softcap?' "${run[@]}" --soft_cap=3
    refuses 2 'did you mean --causal?' "${run[@]}" -causal
    refuses 2 'did you mean --query?' run --qurey q.npy "${files[@]:2}" --out out/out.npy # and not: --query is missing
    refuses 2 'did you mean --heads-q or --heads-kv?' explain "${shape[@]}" --heads 4
    refuses 2 'did you mean --seqlen-q or --seqlen-kv?' explain --seqlen 4 --head-dim 8
    refuses 2 'did you mean --json?' info --jsno
    refuses 2 'did you mean --dq or --dk or --dv?' grad --dw out/dv.npy
    refuses 2 'did you mean --version?' --verison
    local all="info, run, grad, explain, bench, conformance, report, help, version"
    refuses 2 "'rum' is no subcommand; there are $all; did you mean run?" rum
    refuses 2 'did you mean explain?' exlpain "${shape[@]}"
    refuses 2 'did you mean explain?' help exlpain
    refuses 2 'come after its name, as in vkattn run --causal' --causal "${run[@]}"
    refuses 2 'extra: is not expected' "${run[@]}" extra
    refuses 2 --frobnicate "${run[@]}" --frobnicate
    holds "something else was suggested" not grep -q 'did you mean' stderr
    refuses 2 frobnicate frobnicate
    holds "something else was suggested" not grep -q 'did you mean' stderr
}

test_help_as_word() {
    local sub
    alike '' help --help
    for sub in run grad info explain bench; do alike '' "help $sub" "$sub --help"; done
    alike '' version --version
    holds "the help says nothing of exit codes" grep -q 'Exit codes: 0' <(start "$build/vkattn" help)
    refuses 2 extra version extra
    refuses 2 extra help run extra
}

# What the library says of its structs' fields is said of options.
test_option_names_in_errors() {
    local shape=(--seqlen-q 8 --head-dim 8) field='(problem|options|backward)\.|[a-z]_[a-z]'
    refuses 2 '--heads-kv: --heads-q = 3 is not' explain "${shape[@]}" --heads-q 3 --heads-kv 2
    holds "a field is named" not grep -qE "$field" stderr
    refuses 2 '--batch: batch * --heads-q' explain "${shape[@]}" --batch 1M --heads-q 4k
    refuses 2 '--num-splits: ' explain "${shape[@]}" --num-splits 2 --batch-invariant
    holds "a field is named" not grep -qE "$field" stderr
    refuses 3 '--precision: ' explain --seqlen-q 64 --head-dim 16 --precision bf16 # lavapipe's matrices are of float16
    refuses 3 '--kernel: the baseline has no' run "${files[@]}" --out out/out.npy --softcap 1 --kernel materialized \
        --num-splits 2
}

# ---- around the tool

# vkattn_full ARGUMENT...: with a standard output that takes nothing.
vkattn_full() {
    last_args="$* >/dev/full"
    code=0
    start "$build/vkattn" "$@" >/dev/full 2>stderr || code=$?
    : >stdout
}

test_full_stdout() {
    local words=("bench --suite llama --list" "bench --seqlen-q 16 --head-dim 8 --repeats 1" info "info --json" "info --profile"
        --help "run --help" --version help version "explain --seqlen-q 8 --head-dim 8") word
    rm -rf out/*
    for word in "${words[@]}"; do
        # shellcheck disable=SC2086 # several words
        vkattn_full $word
        holds "a full standard output is no error" complained 1 'standard output: '
    done
    vkattn_full explain --seqlen-q 8 --head-dim 577
    holds "another error has not its own exit code" complained 2 --head-dim
}

# Where no Vulkan loader can be opened, the line says what to install.
test_no_loader() {
    mkdir -p no_loader
    for name in libvulkan.so libvulkan.so.1; do echo "not a library" >"no_loader/$name"; done
    rm -rf out/*
    last_args='info (no loader)'
    code=0
    "$sdk/ld.so" --library-path "$PWD/no_loader:$sdk/lib" "$build/vkattn" info >stdout 2>stderr || code=$?
    holds "no loader, but not refused with 3" complained 3 'no Vulkan loader'
    holds "the line does not say what to install" grep -q 'libvulkan1; a driver' stderr
}
