# shellcheck shell=bash disable=SC2034,SC2154 # variables and functions of tests/cli/run
#
# Tests of tests/cli/run: storage types, masks, lengths, offsets, plans of several segments.

# ---- storage types

test_dtype() {
    local dtype descr suffixes q k v
    local -A descrs=([f32]='<f4' [f16]='<f2' [bf16]='<V2')
    for dtype in f32 f16 bf16; do
        descr=${descrs[$dtype]}
        # Files of one type, and mixed, so that each type is once that of each tensor.
        for suffixes in 'f4 f4 f4' 'f8 f2 b' 'b f8 f2' 'f2 b f8'; do
            read -r q k v <<<"$suffixes"
            local files=(--query "q_$q.npy" --key "k_$k.npy" --value "v_$v.npy")
            run_right --dtype="$dtype" --causal
            holds "out is not $dtype" has_header out/out.npy "'$descr'"
            holds "lse is not float32" has_header out/lse.npy "'<f4'"
            [[ -e $dtype.npy ]] || cp out/out.npy "$dtype.npy"
            holds "the types of the files changed the result" cmp out/out.npy "$dtype.npy"
        done
    done
    files=(--query q_b.npy --key k_b.npy --value v_b.npy)
    run_right --causal
    holds "--dtype bf16 of bfloat16 changed the result" cmp out/out.npy bf16.npy
}

# rounds DTYPE DESCR VALUES PATTERNS: one key, so that out is value; its bits are PATTERNS.
rounds() {
    local files=(--query one_q.npy --key one_k.npy --value one_v.npy) wanted count
    wanted=$(tr ' ' '\n' <<<"$4")
    count=$(wc -l <<<"$wanted")
    make_input one_q 1,1,1,4
    make_input one_k 1,1,1,4
    make_input one_v "1,1,1,$count" "$2" c "=$3"
    rm -f out/*
    succeeds run "${files[@]}" --out out/out.npy --dtype "$1" --out-dtype "$1"
    holds "$2 is not rounded to $1 as it should" \
        diff <(tail -c +129 out/out.npy | od -An -v -w2 -t x2 | tr -d ' ') <(echo "$wanted")
}

# Ties to even, and float64 once: by way of float32 the second value of each line would be a tie.
test_dtype_rounding() {
    rounds f16 '<f8' 0x1.002p0,0x1.0020000001p0,0x1.001fffffffp0,0x1.006p0,-0x1.006p0,65519.99,0x1p-24,0x1.0000000001p-25,0x1p-25 \
        '3c00 3c01 3c00 3c02 bc02 7bff 0001 0001 0000'
    rounds f16 '<f4' 0x1.002p0,0x1.002002p0,0x1.006p0,0x1.ff8p-15,0x1.ffbp-15,0x1.ffcp-15 '3c00 3c01 3c02 03ff 03ff 0400'
    rounds bf16 '<f8' 0x1.01p0,0x1.0100000001p0,0x1.00ffffffffp0,0x1.03p0,-0x1.03p0 '3f80 3f81 3f80 3f82 bf82'
    rounds bf16 '<f4' 0x1.01p0,0x1.010002p0,0x1.03p0 '3f80 3f81 3f82'
    rounds bf16 '<f2' 0x1.03p0,0x1.01p0 '3f82 3f80'
}

# Buffers of an odd number of 2-byte elements, and rows that share 32-bit words.
test_dtype_odd_sizes() {
    local descr
    for descr in '<f2' bfloat16; do
        local files=(--query q_odd.npy --key k_odd.npy --value v_odd.npy)
        make_input q_odd 1,3,5,5 "$descr"
        make_input k_odd 1,1,7,5 "$descr"
        make_input v_odd 1,1,7,3 "$descr"
        make_input m_odd 3,5,7 "$descr" c mask:1
        run_right
        run_right --mask=m_odd.npy --causal
        make_input q_odd 1,5,3,5 "$descr"
        make_input k_odd 1,7,1,5 "$descr"
        make_input v_odd 1,7,1,3 "$descr"
        run_right --layout=bshd --mask=m_odd.npy
    done
}

test_dtype_refusals() {
    local run=(run "${files[@]}" "${outputs[@]}") value argument
    for value in float8 F15 '' f64 halves; do refuses 2 --dtype "${run[@]}" "--dtype=$value"; done
    for value in -f '' bfloat; do refuses 2 --dtype explain --seqlen-q 8 --head-dim-qk 8 "--dtype=$value"; done
    make_input object 2,4,37,24 '|O'
    make_input integers 2,4,37,24 '<i4' c =1
    for argument in --query --key --value; do
        for value in object integers missing; do
            local -A file=([--query]=q.npy [--key]=k.npy [--value]=v.npy)
            file[$argument]=$value.npy
            refuses 2 "$argument" run --query "${file[--query]}" --key "${file[--key]}" --value "${file[--value]}" \
                "${outputs[@]}" --dtype f16
        done
    done
    refuses 2 --key run --query q.npy --key k_f8.npy --value v.npy "${outputs[@]}"
}

# Keys and values in types of their own: as their files have them, converted, and as blocks of ggml's types.
test_kv_dtype() {
    local type both files=(--query q.npy --key k_f2.npy --value v_b.npy)
    run_right --causal
    make_input q_wide 2,4,37,64
    make_input k_wide 2,2,51,64
    make_input v_wide 2,2,51,32
    for type in q8_0 q4_0 q4_1 q5_0 q5_1 iq4_nl int8 e4m3 e5m2; do
        both=(--type "$type" --in k_wide.npy --out "k_$type.npy")
        "$build/vkattn_reference" quantise "${both[@]}"
        "$build/vkattn_reference" quantise "${both[@]//k_/v_}"
        "$build/vkattn_reference" decode --type "$type" --in "k_$type.npy" --out k_decoded.npy
        "$build/vkattn_reference" decode --type "$type" --in "v_$type.npy" --out v_decoded.npy
        succeeds run --query q_wide.npy --key "k_$type.npy" --value "v_$type.npy" "${outputs[@]}" --kv-dtype "$type"
        holds "$type is not what it decodes to" "$build/vkattn_reference" check --query q_wide.npy \
            --key k_decoded.npy --value v_decoded.npy "${outputs[@]}"
    done
    succeeds run --query q_wide.npy --key k_q8_0.npy --value v_wide.npy "${outputs[@]}" --kv-dtype q8_0,f16 --json
    holds "the problem's types are not told" "$build/vkattn_json_check" problem.key_dtype=string \
        problem.value_dtype=string <stdout
    local run=(run --query q_wide.npy --key k_q8_0.npy --value v_q8_0.npy "${outputs[@]}")
    refuses 2 '--key: dtype uint8' "${run[@]}"
    refuses 2 '--key: rows of 68 bytes' "${run[@]}" --kv-dtype q4_0
    refuses 2 '--kv-dtype:' "${run[@]}" --kv-dtype q3_0
    refuses 2 '--key: dtype float32' run --query q_wide.npy --key k_wide.npy --value v_q8_0.npy "${outputs[@]}" \
        --kv-dtype q8_0
    # Multiples of 1/4 are exact as int8 with a scale of 1/4.
    make_input scale_one 1 '<f4' c =0.25
    make_input k_quarters 2,2,51,64 '<f4' c =0.25,-0.5,0.75,1.25,-2
    make_input v_quarters 2,2,51,32 '<f4' c =-3.5,1,0.25
    make_input k_int8 2,2,51,64 '|i1' c =1,-2,3,5,-8
    make_input v_int8 2,2,51,32 '|i1' c =-14,4,1
    local scaled=(run --query q_wide.npy --key k_int8.npy --value v_int8.npy "${outputs[@]}" --kv-dtype int8)
    make_input scale_heads 2 '<f4' c =0.25
    make_input scale_rows 2,2,51 '<f4' c =0.25
    for type in one heads rows; do
        succeeds "${scaled[@]}" --key-scales "scale_$type.npy" --value-scales "scale_$type.npy"
        holds "scales of $type do not multiply" "$build/vkattn_reference" check --query q_wide.npy \
            --key k_quarters.npy --value v_quarters.npy "${outputs[@]}"
    done
    make_input scale_wrong 3 '<f4' c =0.25
    refuses 2 '--key-scales: ' "${scaled[@]}" --key-scales scale_wrong.npy
    refuses 2 '--value-scales: ' "${scaled[@]}" --value-scales k_wide.npy
    refuses 2 '--key-scales: ' "${run[@]}" --kv-dtype q8_0 --key-scales scale_one.npy
    refuses 2 '--kv-scales: ' explain --seqlen-q 8 --head-dim 64 --kv-dtype q8_0 --kv-scales one
    refuses 2 '--kv-scales: ' explain --seqlen-q 8 --head-dim 64 --kv-dtype e4m3 --kv-scales all
    succeeds bench --seqlen-q 8 --head-dim 64 --kv-dtype int8,e4m3 --kv-scales rows --repeats 4
    refuses 2 '40 is not a multiple of 32' explain --seqlen-q 8 --head-dim 40 --kv-dtype q8_0
    refuses 3 'q8_0 has no gradient' explain --seqlen-q 8 --head-dim 64 --kv-dtype q8_0 --backward
}

# The value of a key is the beginning of its row, which is made of the same numbers as --value is.
test_value_in_key() {
    local pattern='=0.25,-0.5,0.75,1.25,-2,3,0,-1'
    make_input q_latent 2,4,5,96
    make_input k_latent 2,1,51,96 '<f4' c "$pattern"
    make_input v_latent 2,1,51,64 '<f4' c "$pattern"
    local run=(run --query q_latent.npy --key k_latent.npy "${outputs[@]}")
    succeeds "${run[@]}" --value-in-key 64 --json
    holds "the report does not tell" "$build/vkattn_json_check" problem.value_in_key=boolean \
        problem.head_dim_v=number <stdout
    holds "the value is not the key's" "$build/vkattn_reference" check --query q_latent.npy --key k_latent.npy \
        --value v_latent.npy "${outputs[@]}"
    refuses 2 'is needed, or --value-in-key' "${run[@]}"
    refuses 2 --value-in-key "${run[@]}" --value-in-key 97
    refuses 2 --value-in-key "${run[@]}" --value-in-key 0
    refuses 2 --value-in-key "${run[@]}" --value-in-key 64 --value v_latent.npy
    refuses 2 --kv-dtype "${run[@]}" --value-in-key 64 --kv-dtype f32,f16
    succeeds explain --seqlen-q 8 --head-dim 96 --value-in-key 64
    refuses 2 --value-in-key explain --seqlen-q 8 --head-dim 96 --value-in-key 0
    refuses 3 --value-in-key explain --seqlen-q 8 --head-dim 96 --value-in-key 64 --backward
    refuses 3 --precision explain --seqlen-q 8 --head-dim 96 --kv-dtype f16 --precision f16 --backward
    succeeds bench --seqlen-q 8 --head-dim 96 --value-in-key 64 --kv-dtype q8_0 --repeats 4
}

# ---- masks

# make_mask SHAPE [DESCR]
make_mask() { make_input mask "$1" "${2:-|b1}" c mask:7; }

# Every rank, every axis broadcast, short last extents, an empty one.
test_mask_shapes() {
    local shape descr='<f4'
    # By turns of the two types, which are read by the same code: each has each rank, broadcast axis, a short extent.
    for shape in 51 1 0 30 37,51 37,1 37,13 1,51 4,1,51 4,37,51 1,37,50 2,4,37,51 2,1,37,51 1,4,1,51 2,1,1,51 \
        1,1,1,1 2,4,37,1 2,1,37,19 1,2,1,51 2,2,37,51; do
        make_mask "$shape" "$descr"
        run_right --mask=mask.npy
        [[ $descr == '<f4' ]] && descr='|b1' || descr='<f4'
    done
}

# repeated COUNT TEXT: so many of it, with commas between.
repeated() {
    local i text=$2
    for ((i = 1; i < $1; i++)); do text+=,$2; done
    echo "$text"
}

# A mask that scores begin as, over the scale, is rounded otherwise than one that is added behind it: across the size
# from which on the latter is done, and where q.k is far larger. Of each line's problem, queries and keys have so many
# elements that are not 0, of 80; values are all 0.5, and so is their mean.
test_mask_large() {
    local count query key mask rest queries=() keys=() masks=() IFS=,
    while IFS=' ' read -r count query key mask; do
        rest=$(repeated $((80 - count)) 0)
        queries+=("$(repeated 32 "$(repeated "$count" "$query"),$rest")")
        keys+=("$(repeated 64 "$(repeated "$count" "$key"),$rest")")
        masks+=("$(repeated 2048 "$mask")")
    done <<'END'
1 1 -15.9453125 -708
8 51040 65280 -65504
8 51040 65280 33344
8 51040 65280 11112
END
    make_input far_q 4,1,32,80 '<f2' c "=${queries[*]}"
    make_input far_k 4,1,64,80 '<f2' c "=${keys[*]}"
    make_input far_v 4,1,64,16 '<f2' c =0.5
    make_input far_mask 4,1,32,64 '<f2' c "=${masks[*]}"
    succeeds run --query far_q.npy --key far_k.npy --value far_v.npy --mask far_mask.npy --out out/out.npy --dtype f16 \
        --kernel matrix --tuning chunk=0,q_held=16,running=0
    holds "a softmax of equal scores is none" \
        test "$(tail -c +129 out/out.npy | od -An -v -w2 -t x2 | sort -u | tr -d ' \n')" = 3800
}

# Each type of mask, in and out of its axis and byte order, gives the same result.
test_mask_types() {
    make_mask 4,37,51 '<f4'
    run_right --mask=mask.npy
    mv out/out.npy same.npy
    local descr order
    for descr in '<f4' '>f4'; do
        for order in c fortran; do
            make_input mask 4,37,51 "$descr" "$order" mask:7
            run_right --mask=mask.npy
            holds "the mask's order changed the result" cmp out/out.npy same.npy
        done
    done
    for descr in '<f2' '<f8' bfloat16; do
        make_mask 4,37,51 "$descr"
        run_right --mask=mask.npy --dtype=f32
        holds "the mask's type changed the result" cmp out/out.npy same.npy
    done
    for descr in '<f2' bfloat16; do
        make_mask 4,37,51 "$descr"
        run_right --mask=mask.npy
        holds "a mask of its own type changed the result" cmp out/out.npy same.npy
    done
    local files=(--query q_f2.npy --key k_f2.npy --value v_f2.npy)
    for descr in '<f2' '|b1'; do
        make_mask 4,37,51 "$descr"
        run_right --mask=mask.npy --causal
    done
    files=(--query q_b.npy --key k_b.npy --value v_b.npy)
    make_mask 2,1,37,51 bfloat16
    run_right --mask=mask.npy
}

# use_rows KERNEL DESCR: files of as many query rows as this kernel is for, and their number in rows.
use_rows() {
    rows=37
    [[ $1 == tiles ]] || rows=2
    make_input q_rows "2,4,$rows,24" "$2"
    make_input k_rows 2,2,51,24 "$2"
    make_input v_rows 2,2,51,40 "$2"
    files=(--query q_rows.npy --key k_rows.npy --value v_rows.npy)
}

# Scores are held to +-1e38, so the lse of lower ones is not theirs.
run_right_without_lse() {
    local outputs=(--out out/out.npy)
    run_right "$@"
}

# Rows that see nothing: out 0, lse -inf. A row of nothing but the most negative number sees all.
test_mask_extremes() {
    local kernel rows mask files
    make_input hidden 51 '<f4' c =-inf
    make_input least 51 '<f4' c =-0x1.fffffep127
    make_input least_f2 51 '<f2' c =-65504
    make_input beyond 1,51 '<f4' c =1e30,-1e30,-inf,0,-65504
    for kernel in rows tiles; do
        use_rows "$kernel" '<f4'
        make_input none "$rows,51" '|b1' c =0
        for mask in none hidden; do
            run_right --mask="$mask.npy" --kernel="$kernel"
            holds "hidden rows are not 0" [ -z "$(words out/out.npy little | grep -v 00000000)" ]
            holds "the lse of hidden rows is not -inf" [ -z "$(words out/lse.npy little | grep -v ff800000)" ]
        done
        run_right_without_lse --mask=least.npy --kernel="$kernel"
        run_right --mask=beyond.npy --kernel="$kernel" --softcap=2
        use_rows "$kernel" '<f2'
        run_right --mask=least_f2.npy --kernel="$kernel"
    done
}

refuses_mask() {
    make_input mask "${@:1:2}"
    refuses 2 --mask run "${files[@]}" "${outputs[@]}" --mask mask.npy "${@:3}"
}

test_mask_refusals() {
    local shape descr dtype
    for shape in - 52 37,52 36,51 3,37,51 0,37,51 3,4,37,51 2,8,37,51 2,4,38,51 2,4,37,52 1,1,1,1,1; do
        refuses_mask "$shape" '|b1'
    done
    for dtype in '' --dtype=f16; do refuses_mask 37,51 '|O' $dtype; done
    refuses_mask 37,51 '<f8'
    local run=(run "${files[@]}" "${outputs[@]}")
    refuses 2 --mask "${run[@]}" --mask missing.npy
    refuses 2 --mask "${run[@]}" --mask ''
    refuses 2 --mask "${run[@]}" --mask
}

# A mask for each batch has 4 dimensions, as NumPy broadcasts; and so has one of fewer heads.
test_mask_hints() {
    refuses_mask 2,51 '|b1'
    holds "the line does not say how batches are masked" grep -qF '(batch, 1, 1, seqlen_kv)' stderr
    refuses_mask 2,37,51 '|b1'
    holds "the line does not say how batches are masked" grep -qF '(batch, 1, seqlen_q, seqlen_kv)' stderr
    local files=(--query q.npy --key k.npy --value v.npy)
    make_input q 3,4,37,24
    make_input k 3,2,51,24
    make_input v 3,2,51,40
    refuses_mask 2,37,51 '<f4'
    holds "the line does not say how heads are shared" grep -qF 'a mask of 4 dimensions' stderr
    make_input q 2,4,37,24
    make_input k 2,2,51,24
    make_input v 2,2,51,40
}

# Tokenizers write 0 and 1 as integers.
test_mask_integers() {
    local descr first='' files=("${files[@]}")
    for descr in '<i8' '>i4' '|u1' '|i1' '<i2' '>u2' '<u4' '|b1'; do
        make_input mask 2,1,1,51 "$descr" c =1,0,1,1,0
        run_right --mask=mask.npy --causal
        [[ -n $first ]] || mv out/out.npy first.npy
        [[ -z $first ]] || holds "$descr is not what integers are" cmp out/out.npy first.npy
        first=$descr
    done
    for descr in '<i8' '|i1'; do
        refuses_mask 37,51 "$descr"
        make_input mask 37,51 "$descr" c =1,0,-1
        refuses 2 '--mask: -1 at [0, 2] is neither 0 nor 1' run "${files[@]}" "${outputs[@]}" --mask mask.npy \
            --dtype f16
    done
    use_grad g
    make_input mask 1,27 '<i4' c =1,0
    refuses 2 '--dbias: is the gradient of a float mask' grad "${files[@]}" "${gradients[@]}" --mask mask.npy \
        --dbias out/dbias.npy
}

# ---- lengths and offsets

test_kv_lengths() {
    local descr lengths option
    for lengths in =51,51 =0,51 =17,1 =50,0 =0,0; do
        make_input lengths 2 '<i4' c "$lengths"
        run_right --kv-lengths=lengths.npy --causal
    done
    for lengths in =0,51 =17,1; do
        make_input lengths 2 '<i4' c "$lengths"
        for option in --scale=0.5 --window=9,2; do run_right --kv-lengths=lengths.npy "$option"; done
    done
    for descr in '>i4' '<i8' '>i8'; do
        make_input lengths 2 "$descr" c =33,7
        run_right --kv-lengths=lengths.npy --causal
    done
}

test_query_offsets() {
    local offsets
    for offsets in =0,0 =14,-5 =-40,60 =-2147483648,2147483647; do
        make_input offsets 2 '<i4' c "$offsets"
        run_right --query-offsets=offsets.npy --causal
        run_right --query-offsets=offsets.npy --window=8,3
    done
    make_input offsets 2 '<i8' c =3,20
    run_right --query-offsets=offsets.npy
    run_right --query-offsets=offsets.npy --causal
    mv out/out.npy given.npy
    make_input offsets 2 '<i8' c =14,14
    run_right --query-offsets=offsets.npy --causal
    mv out/out.npy given.npy
    run_right --align=14 --causal
    holds "the same offset, given otherwise, changed the result" cmp out/out.npy given.npy
}

# Windows and offsets about the limits of 32 bits, and windows of all that an int64 has.
test_windows_at_the_limits() {
    local window
    make_input lengths 2 '<i4' c =51,17
    local offsets=(=-2147483648,2147483647 =2147483600,-9) aligned=(-2147483648 2147483648 -9) i=0
    for window in 7,2147483646 2147483647,3 2147483646,2147483647 2147483648,4294967295 9223372036854775807,0; do
        run_right --window=$window --align="${aligned[i % 3]}"
        make_input offsets 2 '<i4' c "${offsets[i++ % 2]}"
        run_right --window=$window --query-offsets=offsets.npy
    done
    run_right --window=7,2147483646 --kv-lengths=lengths.npy
    run_right --window=9223372036854775807,0 --kv-lengths=lengths.npy
}

# refuses_numbers ARGUMENT VALUES [DESCR [SHAPE]]
refuses_numbers() {
    make_input numbers "${4:-2}" "${3:-<i8}" c "=$2"
    refuses 2 "$1" run "${files[@]}" "${outputs[@]}" "$1" numbers.npy
}

test_per_batch_refusals() {
    local argument
    for argument in --kv-lengths --query-offsets; do
        refuses_numbers "$argument" 1 '<f4'
        refuses_numbers "$argument" 1 '|b1'
        refuses_numbers "$argument" 1 '<i4' 3
        refuses_numbers "$argument" 1 '<i4' 2,1
        refuses_numbers "$argument" 1 '<i4' 0
        refuses_numbers "$argument" 1 '<i4' -
        refuses 2 "$argument" run "${files[@]}" "${outputs[@]}" "$argument" missing.npy
        refuses 2 "$argument" run "${files[@]}" "${outputs[@]}" "$argument="
    done
    refuses_numbers --kv-lengths 0,-1
    refuses_numbers --kv-lengths 52,1
    refuses_numbers --kv-lengths 0,4294967296
    refuses_numbers --query-offsets 0,2147483648
    refuses_numbers --query-offsets -2147483649,0
    make_input numbers 2 '<i4' c =0
    refuses 2 --query-offsets run "${files[@]}" "${outputs[@]}" --query-offsets numbers.npy --align 3
}

test_alibi() {
    local argument
    make_input slopes 4 '<f4' c =0.5,0.25,-0.125,2
    for argument in --causal --align=-9 --window=9,2; do run_right --alibi=slopes.npy "$argument"; done
    make_input slopes 2,4 '>f4' c =0.5,0.25,-0.125,2,0,1,3,0.0625
    run_right --alibi=slopes.npy
    make_input mask 37,51
    run_right --alibi=slopes.npy --alibi-of=mask --mask=mask.npy
    refuses 2 '--alibi-of: slopes are applied to the mask' run "${files[@]}" "${outputs[@]}" --alibi slopes.npy \
        --alibi-of mask
    refuses 2 --alibi-of run "${files[@]}" "${outputs[@]}" --alibi-of mask --mask mask.npy
    refuses 2 --alibi-of run "${files[@]}" "${outputs[@]}" --alibi slopes.npy --alibi-of keys
    for argument in 3 2 4,2 2,4,1 -; do refuses_numbers --alibi 1 '<f4' "$argument"; done
    refuses_numbers --alibi 1 '<i4' 4
    refuses 2 --alibi run "${files[@]}" "${outputs[@]}" --alibi missing.npy
    succeeds explain --heads-q 4 --seqlen-q 64 --head-dim 24 --alibi --json
    holds "the JSON has no slopes" "$build/vkattn_json_check" problem.alibi.of=string <stdout
}

# A map that the device makes of a mask changes no result, and the report counts its blocks.
made_map_right() {
    local row elements=
    for row in {0..36}; do
        case $((row / 16)) in
        0) elements+=$(printf ',1%.0s' {0..31})$(printf ',0%.0s' {32..50}) ;;
        1) elements+=$(printf ',0%.0s' {0..50}) ;;
        2) elements+=$(printf ',1%.0s' {0..49}),0 ;;
        esac
    done
    make_input mask 37,51 '|b1' c "=${elements#,}"
    run_right --mask=mask.npy --block-map=from-mask --block-size=16,16
    shows '^blocks .* 6 hidden, 5 visible, 1 as the mask says'
    refuses 2 --block-map run "${files[@]}" "${outputs[@]}" --block-map from-mask
    refuses 2 --block-map explain --seqlen-q 64 --head-dim 24 --block-map from-mask
}

test_block_map() {
    local argument kinds=0,1,2,1,0,1,1,1,0,2,9,1,0,0,1,2,1,0,2,1,0,0,1,1
    make_input blocks 1,4,3,2 '<i4' c =$kinds
    for argument in --causal --window=9,2 --num-splits=3; do
        run_right --block-map=blocks.npy --block-size=16,32 "$argument"
    done
    make_input mask 1,1,37,51 '<f4' c
    run_right --block-map=blocks.npy --block-size=16,32 --mask=mask.npy
    made_map_right
    succeeds explain --seqlen-q 2k --head-dim 24 --block-map random:0.9 --block-size 64,128 --json
    holds "the JSON has no blocks" grep -q '"block_map":\[64,128\]' stdout
    refuses 2 --block-map run "${files[@]}" "${outputs[@]}" --block-map blocks.npy
    refuses 2 --block-size run "${files[@]}" "${outputs[@]}" --block-map blocks.npy --block-size 16
    refuses 2 --block-size run "${files[@]}" "${outputs[@]}" --block-map blocks.npy --block-size 8,32
    make_input blocks 1,3,3,2 '<i4' c =0,1,2,1,0,1,1,1,0,2,9,1,0,0,1,2,1,0
    refuses 2 --block-map run "${files[@]}" "${outputs[@]}" --block-map blocks.npy --block-size 16,32
    make_input blocks 3,1,3,2 '<i4' c =0,1,2,1,0,1,1,1,0,2,9,1,0,0,1,2,1,0
    refuses 2 --block-map run "${files[@]}" "${outputs[@]}" --block-map blocks.npy --block-size 16,32
    make_input blocks 1,1,3,2 '<i4' c =0,1,2,1,0,256
    refuses 2 --block-map run "${files[@]}" "${outputs[@]}" --block-map blocks.npy --block-size 16,32
    make_input blocks 1,1,3,2 '|b1' c =0,1,0,1,0,1
    run_right --block-map=blocks.npy --block-size=16,32
    for argument in half random:0 random:2 causal-documents:0; do
        refuses 2 --block-map explain --seqlen-q 64 --head-dim 24 --block-map "$argument"
    done
}

test_sinks() {
    local argument
    make_input sinks 4 '<f4' c =0.5,-1,3,-inf
    for argument in --causal --window=9,2 --num-splits=3; do run_right --sinks=sinks.npy "$argument"; done
    make_input slopes 4 '<f4' c =0.5,0.25,-0.125,2
    make_input sinks 4 '>f4' c =0.5,-1,3,0
    run_right --sinks=sinks.npy --alibi=slopes.npy --softcap=3
    for argument in 3 2,4 -; do refuses_numbers --sinks 1 '<f4' "$argument"; done
    refuses 2 --sinks run "${files[@]}" "${outputs[@]}" --sinks missing.npy
    succeeds explain --heads-q 4 --seqlen-q 64 --head-dim 24 --sinks --causal
    holds "a row does not see 1 to 64 keys" grep -qx 'a row    sees 1 to 64 keys, 32.5 on average' stdout
    succeeds explain --seqlen-q 10 --seqlen-kv 7 --head-dim 24 --align 2 --window 2,1 --mask-shape 7
    holds "a row sees other keys" grep -qx 'a row    sees 0 to 4 keys, 2.2 on average, less what the mask hides' stdout
}

# ---- all at once

# That features agree in pairs is for the GPU tests; here the options of all of them have to reach the problem.
test_features_together() {
    local kernel rows files dtype mask sides
    make_input lengths 2 '<i4' c =44,9
    make_input offsets 2 '<i8' c =13,-3
    for kernel in rows tiles; do
        use_rows "$kernel" '<f4'
        make_input bool "2,4,$rows,51" '|b1' c mask:7
        make_input float "4,$rows,45" '<f4' c mask:7
        # Types of masks by turns: each with each kernel, and with each dtype.
        [[ $kernel == rows ]] && mask=bool || mask=float
        for dtype in f32 f16 bf16; do
            run_right --dtype="$dtype" --kernel="$kernel" --mask="$mask.npy" --kv-lengths=lengths.npy \
                --query-offsets=offsets.npy --causal --window=12,-1 --softcap=1.5 --scale=-0.4
            [[ $mask == bool ]] && mask=float || mask=bool
        done
    done
    for sides in --causal --window=6,4 --softcap=0.8; do
        run_right --kernel=tiles --mask=bool.npy --kv-lengths=lengths.npy "$sides"
    done
}

# A problem with nothing to compute, or no key at all.
test_features_empty() {
    local shapes files=(--query q_empty.npy --key k_empty.npy --value v_empty.npy)
    for shapes in '0,4,3,24 0,2,5,24 0,2,5,8 0 0,4,3,5' '2,4,0,24 2,2,5,24 2,2,5,8 2 4,0,5' '2,4,3,24 2,2,0,24 2,2,0,8 2 3,0'; do
        read -ra shapes <<<"$shapes"
        make_input q_empty "${shapes[0]}" '<f2'
        make_input k_empty "${shapes[1]}" '<f2'
        make_input v_empty "${shapes[2]}" '<f2'
        make_input lengths "${shapes[3]}" '<i4' c =0
        make_mask "${shapes[4]}"
        run_right --causal --mask=mask.npy --kv-lengths=lengths.npy --query-offsets=lengths.npy
    done
}

# ---- plans of several segments

json_number() { grep -o "\"$1\":[0-9]*" stdout | head -1 | cut -d: -f2; }

test_segments() {
    run_right --causal
    mv out/out.npy whole.npy
    local limit
    for limit in 0.0005 0.002; do
        run_right --causal --max-dispatch-gflop="$limit"
        succeeds run "${files[@]}" "${outputs[@]}" --json --causal --max-dispatch-gflop "$limit"
        holds "a limit of $limit GFLOP did not cut" [ "$(json_number segments)" -gt 1 ]
        holds "all segments went into one submission" [ "$(json_number submissions)" -gt 1 ]
    done
    run_right --causal --num-splits=3
    run_right --causal --num-splits=3 --max-dispatch-gflop=0.0005 --dtype=f16
    run_right --batch-invariant --causal
    make_input lengths 2 '<i4' c =44,9
    run_right --batch-invariant --kv-lengths=lengths.npy --dtype=bf16
    local run=(run "${files[@]}" "${outputs[@]}") value
    for value in -1 abc '' nan inf 1e30; do refuses 2 --max-dispatch-gflop "${run[@]}" "--max-dispatch-gflop=$value"; done
    for value in -1 abc '' 1.5; do refuses 2 --num-splits "${run[@]}" "--num-splits=$value"; done
    refuses 2 --batch-invariant "${run[@]}" --batch-invariant=maybe
}

# ---- precision

test_precision() {
    run_right --precision=f16 --kernel=matrix --causal
    run_right --precision=storage
    succeeds run "${files[@]}" "${outputs[@]}" --precision f16 --json
    holds "the JSON has not the precision" grep -q '"precision":"float16"' stdout
    local shape=(--heads-q 2 --seqlen-q 64 --head-dim-qk 16)
    succeeds explain "${shape[@]}" --precision f16
    holds "the plan rounds nothing" grep -q '^kernel   matrix, .* products of float16$' stdout
    succeeds explain "${shape[@]}" --precision f16 --dtype f16
    refuses 3 '--precision: ' explain "${shape[@]}" --precision bf16 # lavapipe's matrices are of float16
    succeeds explain "${shape[@]}" --precision f16 --backward
    holds "the backward's plan rounds nothing" grep -q '^kernel   matrix, .* products of float16$' stdout
    refuses 3 '--precision: ' explain --seqlen-q 64 --head-dim 300 --precision f16 --backward # too many for registers
    refuses 2 --precision explain "${shape[@]}" --precision bf16 --dtype f16
    local value
    for value in f32 '' f8; do refuses 2 --precision explain "${shape[@]}" "--precision=$value"; done
}

# ---- explain and bench

test_feature_plans() {
    local shape=(--heads-q 4 --heads-kv 2 --seqlen-q 12 --seqlen-kv 40 --head-dim-qk 16)
    succeeds explain "${shape[@]}" --dtype bf16 --mask-shape 1,4,12,40 --kv-lengths-given --json
    holds "the JSON lacks something" "$build/vkattn_json_check" segments=number dispatches.0.flops=number <stdout
    holds "the JSON has not the dtype" grep -q '"dtype":"bf16"' stdout
    succeeds explain "${shape[@]}" --batch-invariant --num-splits 1
    local value
    for value in 1,1,1,1,1 '' '1,' 12,41 12,x 3,12,40 -1; do
        refuses 2 --mask-shape explain "${shape[@]}" "--mask-shape=$value"
    done
    refuses 2 --mask-type explain "${shape[@]}" --mask-shape 40 --mask-type int
    refuses 2 --mask-type explain "${shape[@]}" --mask-type bool
    refuses 2 --mask-fill bench "${shape[@]}" --mask-shape 40 --mask-fill half
    refuses 2 --mask-fill bench "${shape[@]}" --mask-fill random
    succeeds bench --suite decode --dtype f16 --kernel materialized --json # which is refused: the whole takes seconds
    holds "the suite's JSON lacks something" "$build/vkattn_json_check" suite=string matrix_tflops=number copy_gbps=number \
        cases.4.name=string cases.4.refused=string interrupted=boolean <stdout
    succeeds bench --suite llama --kernel materialized # of float16, where nobody says otherwise
    holds "the suite has not its four cases" test "$(grep -cE '^llama d(64|128) n(4096|16384) ' stdout)" -eq 4
    refuses 2 --suite bench --suite nope
    refuses 2 --suite bench --suite nope --list
    refuses 2 --list bench --seqlen-q 4 --head-dim-qk 4 --list
    succeeds bench --suite llama --kernel materialized --dtype f32 --alibi # which this kernel refuses, as it does sinks
    holds "slopes do not reach the cases" test "$(grep -c '^llama .* slopes' stdout)" -eq 4
    succeeds bench --suite llama --kernel materialized --dtype f32 --sinks
    holds "sinks do not reach the cases" test "$(grep -c '^llama .* sinks' stdout)" -eq 4
    refuses 2 --seqlen-q bench --suite decode --seqlen-q 4
    refuses 2 --batch bench --suite decode --batch 4
    refuses 2 --mask-shape bench --suite decode --mask-shape 4
    refuses 2 --layout bench --suite decode --layout bshd
    refuses 2 --sweep bench --suite decode --sweep tunings
    refuses 2 --seqlen-q bench --head-dim-qk 4
}

# The reference makes a problem of each type; all of it, from its files, through both programs.
test_reference_make() {
    local files=(--query made/q.npy --key made/k.npy --value made/v.npy) dtype type
    for dtype in f16 bf16; do
        for type in bool float; do
            "$build/vkattn_reference" make made --batch 2 --heads-q 4 --heads-kv 2 --seqlen 21 --seqlen-kv 70 --head-dim 32 \
                --head-dim-v 48 --dtype "$dtype" --mask 4,21,70 --mask-type "$type" --kv-lengths
            run_right --mask=made/mask.npy --kv-lengths=made/kv_lengths.npy --causal
        done
    done
}
