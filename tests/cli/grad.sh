# shellcheck shell=bash disable=SC2034,SC2154 # variables and functions of tests/cli/run
#
# Tests of tests/cli/run: vkattn grad, and explain --backward. CPU drivers build a set of features in seconds, so that
# few sets of few shapes are used, all of one head dim.

gradients=(--dq out/dq.npy --dk out/dk.npy --dv out/dv.npy)

# use_grad SUFFIX [DESCR]: makes a problem in this type, and sets files to it.
use_grad() {
    make_input "q_$1" 2,4,19,8 "${2:-<f4}"
    make_input "k_$1" 2,2,27,8 "${2:-<f4}"
    make_input "v_$1" 2,2,27,16 "${2:-<f4}"
    make_input "do_$1" 2,4,19,16 "${2:-<f4}"
    name_grad "$1"
}

# name_grad SUFFIX
name_grad() { files=(--query "q_$1.npy" --key "k_$1.npy" --value "v_$1.npy" --dout "do_$1.npy"); }

# grad_checked OPTION...: what was written is what the reference says.
grad_checked() {
    local option options=()
    for option in "$@"; do # to the reference they mean nothing
        [[ $option =~ ^--(kernel|tuning|dtype|num-splits|batch-invariant|max-dispatch-gflop|out|lse)(=|$) ||
            $option == --block-map=from-mask ]] || options+=("$option")
    done
    holds "the gradients are not the reference's" \
        "$build/vkattn_reference" check-grad "${files[@]}" "${gradients[@]}" "${options[@]}"
}

# grad_right [OPTION...]: gradients with these options are what the reference says.
grad_right() {
    rm -rf out/*
    succeeds grad "${files[@]}" "${gradients[@]}" "$@"
    grad_checked "$@"
}

# keep_gradients: moves them to dq.kept, dk.kept, dv.kept.
keep_gradients() {
    local name
    for name in dq dk dv; do mv "out/$name.npy" "$name.kept"; done
}

# same_gradients: as those kept.
same_gradients() {
    local name
    for name in dq dk dv; do cmp "out/$name.npy" "$name.kept" || return; done
}

test_grad_options() {
    local files
    use_grad g
    grad_right
    grad_right --causal --scale=-0.75
    grad_right --causal --align=-5 --kernel=tiles
    grad_right --window=5,2 --align top-left
    grad_right --causal --window=6,-1 --num-splits=1
}

# What run has written may be given: then there is no forward, and the same comes out.
test_grad_given_forward() {
    local files
    use_grad g
    grad_right --causal
    keep_gradients
    succeeds run "${files[@]:0:6}" --causal --out o.npy --lse lse.npy
    grad_right --causal --out=o.npy --lse=lse.npy
    holds "given out and lse changed the gradients" same_gradients
    succeeds grad "${files[@]}" "${gradients[@]}" --causal --out o.npy --lse lse.npy --json
    holds "the JSON tells of a forward" not "$build/vkattn_json_check" forward <stdout
    make_input do_other 2,4,19,16
    succeeds grad "${files[@]}" "${gradients[@]}" --causal --out do_other.npy --lse lse.npy
    holds "the given out is not used" not same_gradients
}

test_grad_layout() {
    local files
    make_input q_bshd 2,19,4,8
    make_input k_bshd 2,27,2,8
    make_input v_bshd 2,27,2,16
    make_input do_bshd 2,19,4,16
    name_grad bshd
    grad_right --layout=bshd --causal
    holds "dq is not bshd" has_header out/dq.npy "(2, 19, 4, 8, )"
    holds "dv is not bshd" has_header out/dv.npy "(2, 27, 2, 16, )"
    keep_gradients
    succeeds run "${files[@]:0:6}" --layout bshd --causal --out o.npy --lse lse.npy
    grad_right --layout=bshd --causal --out=o.npy --lse=lse.npy
    holds "given out and lse changed the gradients" same_gradients
}

# Masks of every rank, broadcast or not, with gradients; dlse and softcap beside them.
test_grad_float_mask() {
    local files shape header gradients=("${gradients[@]}" --dbias out/dbias.npy)
    use_grad g
    make_input dlse 2,4,19
    for shape in 27 19,27 4,1,20 2,1,19,27 1,2,19,27 2,2,1,27; do
        make_input mask "$shape" '<f4' c mask:7
        grad_right --mask=mask.npy --dlse=dlse.npy --softcap=1.5
        header=${shape//,/, }
        holds "dbias has not the shape of the mask" has_header out/dbias.npy "($header, )"
    done
    grad_right --mask=mask.npy --dlse=dlse.npy --softcap=1.5 --causal --window=9,-1
    make_input mask 0 '<f4'
    succeeds grad "${files[@]}" "${gradients[@]}" --mask mask.npy --dlse dlse.npy --softcap 1.5
    holds "dbias of an empty mask is not empty" has_header out/dbias.npy "(0, )"
}

test_grad_block_map() {
    local files
    use_grad g
    make_input dlse 2,4,19
    make_input blocks 2,1,2,2 '<i4' c =0,1,2,1,1,0,9,0
    grad_right --block-map=blocks.npy --block-size=16,16 --dlse=dlse.npy --causal
    make_input mask 19,27 '<f4' c mask:7
    grad_right --block-map=blocks.npy --block-size=16,16 --mask=mask.npy --dlse=dlse.npy
    make_input mask 1,27 '<f4' c "=$(printf '0,%.0s' {1..16})$(printf -- '-inf,%.0s' {1..10})0.5" # dbias is of zeros, too
    grad_right --block-map=from-mask --block-size=16,16 --mask=mask.npy --dlse=dlse.npy
}

test_grad_sinks() {
    local files gradients=("${gradients[@]}" --dsinks out/dsinks.npy)
    use_grad g
    make_input dlse 2,4,19
    make_input sinks 4 '<f4' c =0.5,-1,30,-inf
    grad_right --sinks=sinks.npy --dlse=dlse.npy --causal
    holds "dsinks is not one float32 a head" has_header out/dsinks.npy "'<f4', 'fortran_order': False, 'shape': (4, )"
    grad_right --sinks=sinks.npy --softcap=2 --window=9,-1
    refuses_grad --dsinks --dsinks out/dsinks.npy
}

# Rows and keys that see nothing; batch-invariant has no other gradients.
test_grad_lengths() {
    local files kind
    use_grad g
    make_input bool 2,1,19,27 '|b1' c mask:7
    make_input lengths 2 '<i4' c =22,3
    make_input offsets 2 '<i8' c =9,-7
    local features=(--mask=bool.npy --kv-lengths=lengths.npy --query-offsets=offsets.npy --causal --batch-invariant)
    grad_right "${features[@]}" --window=12,4
    make_input offsets 2 '<i8' c =-40,27
    grad_right "${features[@]}"
    make_input lengths 2 '<i4' c =0,0
    grad_right "${features[@]}"
    for kind in q k v; do
        holds "without keys, d$kind is not 0" [ -z "$(words "out/d$kind.npy" little | grep -v 00000000)" ]
    done
}

# The high halves of a file's 4-byte items, or its 2-byte items; low halves must be 0.
high_halves() { words "$1" little | sed -n 's/ *\(....\)0000$/\1/p'; }
short_words() { tail -c +129 "$1" | od -An -v -w2 -t x2 | tr -d ' '; }

# --dtype is the computation's type; a gradient has its tensor's.
test_grad_dtype() {
    local files name
    use_grad g_f2 '<f2'
    grad_right --causal
    holds "dk is not float16" has_header out/dk.npy "'<f2'"
    use_grad g_b bfloat16
    grad_right --causal
    holds "dq is not bfloat16" has_header out/dq.npy "'<V2'"
    for name in dq dk dv; do short_words "out/$name.npy" >"$name.kept"; done
    use_grad g
    succeeds grad "${files[@]}" "${gradients[@]}" --causal --dtype bf16
    for name in dq dk dv; do
        holds "$name is not float32" has_header "out/$name.npy" "'<f4'"
        holds "$name of --dtype bf16 is not that of bfloat16 files" cmp <(high_halves "out/$name.npy") "$name.kept"
    done
}

# numbers FILE BYTES: the values of a file, one a line, rounded so that float32 and float64 print the same.
numbers() { tail -c +129 "$1" | od -An -v "-w$2" -t "f$2" | awk '{ printf "%.4f\n", $1 + 1e-7 }'; }

test_grad_mixed_files() {
    local files gradients=("${gradients[@]}" --dbias out/dbias.npy)
    use_grad g
    make_input dlse 2,4,19
    make_input mask 4,19,27 '<f4' c mask:7
    local features=(--mask=mask.npy --dlse=dlse.npy --softcap=1.5)
    grad_right "${features[@]}"
    keep_gradients
    make_input q_mixed 2,4,19,8 '>f4' fortran
    make_input k_mixed 2,2,27,8 '<f2'
    make_input v_mixed 2,2,27,16 '<f8'
    make_input do_mixed 2,4,19,16 '>f4'
    make_input mask 4,19,27 bfloat16 c mask:7
    name_grad mixed
    succeeds grad "${files[@]}" "${gradients[@]}" "${features[@]}" --dtype f32
    holds "dq has not the byte order of --query" has_header out/dq.npy "'>f4'"
    holds "dk has not the type of --key" has_header out/dk.npy "'<f2'"
    holds "dv has not the type of --value" has_header out/dv.npy "'<f8'"
    holds "dbias has not the type of --mask" has_header out/dbias.npy "'<V2'"
    holds "dq changed with the files' types" cmp <(words out/dq.npy big) <(words dq.kept little)
    holds "dv changed with the files' types" cmp <(numbers out/dv.npy 8) <(numbers dv.kept 4)
    gradients=(--dk out/dk.npy)
    grad_checked "${features[@]}"
    gradients=(--dbias out/dbias.npy)
    grad_checked "${features[@]}"
}

# Without --dtype each gradient is computed in the type of its file.
test_grad_types_of_files() {
    local files
    use_grad g
    grad_right --causal
    keep_gradients
    make_input k_g 2,2,27,8 '<f2'
    succeeds grad "${files[@]}" "${gradients[@]}" --causal
    holds "dk has not the type of --key" has_header out/dk.npy "'<f2'"
    holds "dq has not the type of --query" has_header out/dq.npy "'<f4'"
    holds "dq changed with the type of --key" cmp <(numbers out/dq.npy 4) <(numbers dq.kept 4)
    holds "dv changed with the type of --key" cmp <(numbers out/dv.npy 4) <(numbers dv.kept 4)
}

test_grad_segments() {
    local files
    use_grad g
    grad_right --causal --max-dispatch-gflop=0.00008
    succeeds grad "${files[@]}" "${gradients[@]}" --json --causal --max-dispatch-gflop 0.00008
    holds "the limit did not cut" [ "$(json_number segments)" -gt 3 ]
    holds "the JSON lacks something" "$build/vkattn_json_check" device=string driver=string dtype=string kernel=string \
        tiles=object submissions=number scratch_bytes=number time_ms=number record_us=number plan_us=number \
        forward.kernel=string forward.segments=number forward.time_ms=number <stdout
    succeeds grad "${files[@]}" "${gradients[@]}" --causal
    local word
    for word in llvmpipe forward backward ms memory; do
        holds "the text does not say: $word" grep -q "$word" stdout
    done
}

# grad_empty Q K V DOUT
grad_empty() {
    local files
    make_input q_empty "$1"
    make_input k_empty "$2"
    make_input v_empty "$3"
    make_input do_empty "$4"
    name_grad empty
    grad_right --causal
}

test_grad_empty() {
    grad_empty 0,4,19,8 0,2,27,8 0,2,27,16 0,4,19,16
    holds "dq has not the shape of --query" has_header out/dq.npy "(0, 4, 19, 8, )"
    grad_empty 2,4,0,8 2,2,27,8 2,2,27,16 2,4,0,16
    holds "without queries, dk is not 0" [ -z "$(words out/dk.npy little | grep -v 00000000)" ]
    holds "without queries, dv has not its shape" has_header out/dv.npy "(2, 2, 27, 16, )"
    grad_empty 2,4,19,8 2,2,0,8 2,2,0,16 2,4,19,16
    holds "without keys, dq is not 0" [ -z "$(words out/dq.npy little | grep -v 00000000)" ]
}

# refuses_grad ARGUMENT [OPTION...]
refuses_grad() { refuses 2 "$1" grad "${files[@]}" "${gradients[@]}" "${@:2}"; }

# refuses_grad_files ARGUMENT SHAPE [DESCR]: a file for this argument, beside what goes with it.
refuses_grad_files() {
    local all=("${files[@]}")
    make_input other "${@:2}"
    case $1 in
        --dout) local files=("${all[@]:0:6}") && refuses_grad --dout --dout other.npy ;;
        --out) refuses_grad --out --out other.npy --lse rows.npy ;;
        --lse) refuses_grad --lse --out do_g.npy --lse other.npy ;;
        *) refuses_grad "$1" "$1" other.npy ;;
    esac
}

test_grad_refused_inputs() {
    local files argument shape
    use_grad g
    make_input rows 2,4,19
    for argument in --dout --out; do
        for shape in 2,4,19,8 2,4,18,16 2,2,19,16 1,4,19,16 2,19,4,16 4,19,16 2,4,19,0; do
            refuses_grad_files "$argument" "$shape"
        done
        refuses_grad_files "$argument" 2,4,19,16 '<f2'
        refuses_grad_files "$argument" 2,4,19,16 '<i4'
    done
    for argument in --dlse --lse; do
        for shape in 2,4,18 2,2,19 4,19 2,4,19,1 152; do refuses_grad_files "$argument" "$shape"; done
        refuses_grad_files "$argument" 2,4,19 '<f2'
        refuses_grad_files "$argument" 2,4,19 '<f8'
    done
    refuses_grad_files --query-offsets 2 '<f4'
    refuses_grad_files --mask 3,27
    refuses_grad --dlse --dlse missing.npy
    refuses_grad --dlse --dlse=
    refuses_grad --out --out missing.npy --lse rows.npy
    refuses_grad --lse --out do_g.npy --lse missing.npy
    refuses_grad --lse --out do_g.npy
    refuses_grad --out --lse rows.npy
    refuses_grad --num-splits --out do_g.npy --lse rows.npy --num-splits 2
    files=("${files[@]:0:6}")
    refuses_grad --dout
    refuses_grad --dout --dout missing.npy
    refuses_grad --dout --dout=
    name_grad g
    for argument in 0 2 4; do
        refuses 2 "${files[argument]}" grad "${files[@]:0:argument}" "${files[@]:argument+2}" "${gradients[@]}"
    done
}

test_grad_refused_options() {
    local files
    use_grad g
    make_input mask 27 '<f4'
    make_input bool 27 '|b1'
    refuses_grad --dbias --dbias out/dbias.npy
    refuses_grad --dbias --mask bool.npy --dbias out/dbias.npy
    refuses_grad --kernel --kernel rows
    refuses_grad --tuning --tuning rows=0
    refuses_grad --dtype --dtype f64
    refuses_grad --window --window 1
    refuses_grad --layout --layout sbhd
    refuses_grad --frobnicate --frobnicate
    refuses 3 nonesuch grad "${files[@]}" "${gradients[@]}" --device nonesuch
}

# All or none are written.
test_grad_refused_outputs() {
    local files name other
    use_grad g
    make_input mask 27 '<f4'
    mkdir -p grad_folder
    for name in dq dk dv; do
        gradients=()
        for other in dq dk dv; do [[ $other == "$name" ]] || gradients+=("--$other" "out/$other.npy"); done
        refuses_grad "--$name"
        refuses_grad "--$name" "--$name="
    done
    refuses_grad --dv --dv out/dq.npy
    refuses_grad --dv --dv grad_folder
    refuses_grad --dv --dv missing/dv.npy
    gradients=(--dq out/dq.npy --dk out/dk.npy --dv out/dv.npy)
    refuses_grad --dbias --mask mask.npy --dbias out/dq.npy
    holds "something was written into a folder" [ -z "$(ls -A grad_folder)" ]
}

test_explain_backward() {
    local shape=(--heads-q 4 --heads-kv 2 --seqlen-q 19 --seqlen-kv 27 --head-dim-qk 8 --head-dim-v 16)
    succeeds explain "${shape[@]}" --causal --backward
    holds "the pass over the keys is not named" grep -q '^dispatch backward_key_value' stdout
    holds "there is no scratch" grep -qE '^scratch +[1-9]' stdout
    succeeds explain "${shape[@]}" --mask-shape 27 --mask-type float --softcap 1 --backward --dbias --json
    holds "the JSON lacks something" "$build/vkattn_json_check" kernel=string tuning_row=string scratch_bytes=number \
        segments=number dispatches.3.variant=string refused=object <stdout
    holds "there is no pass for dbias" grep -q '"backward_mask_f32"' stdout
    refuses 2 --backward explain "${shape[@]}" --dbias
    refuses 2 --dbias explain "${shape[@]}" --backward --dbias
    refuses 2 --num-splits explain "${shape[@]}" --backward --num-splits 2
    refuses 2 --kernel explain "${shape[@]}" --backward --kernel rows
    succeeds explain "${shape[@]}" --backward --kernel materialized
    holds "a step of the baseline is not named" grep -q '^dispatch materialized_transposed' stdout
    refuses 3 "the baseline has no softcap" explain "${shape[@]}" --softcap 1 --backward --kernel materialized
}
