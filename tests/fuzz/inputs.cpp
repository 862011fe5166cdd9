#include "inputs.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "plan/quirks.hpp"

namespace vkattn::fuzz {
namespace {

constexpr uint64_t most_heads = 64;

// Puts anything into a field, now and then.
template <class T>
void spoil(Bytes& bytes, T& field) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    if (!bytes.one_in(32)) return;
    const uint64_t value = bytes.hostile();
    std::memcpy(&field, &value, sizeof field);
}

// Mostly one of the `count` enumerators, now and then another value that fits the type.
template <class E>
E enumerator(Bytes& bytes, uint32_t count) {
    uint32_t value = bytes.below(count);
    if (bytes.one_in(32)) value = static_cast<uint32_t>(bytes.hostile()) & 0x7fffffff;
    return static_cast<E>(value);
}

float scale_of(Bytes& bytes, float usual) {
    if (bytes.one_in(2)) return usual;
    const auto bits = bytes.ConsumeIntegral<uint32_t>();
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t length_of(Bytes& bytes) {
    return static_cast<uint32_t>(bytes.one_in(16) ? bytes.from(VKATTN_MAX_SEQLEN - 300, VKATTN_MAX_SEQLEN)
                                                  : bytes.number(20));
}

uint32_t head_dim_of(Bytes& bytes) {
    static constexpr uint32_t usual[] = {64, 128, 32, 80, 96, 256, 512, 576, 1, 40};
    return bytes.one_in(2) ? bytes.PickValueInArray(usual) : 1 + bytes.below(VKATTN_MAX_HEAD_DIM);
}

struct Extents {
    uint64_t batch, heads, rows, dim;
};

VkattnStrides strides_of(Bytes& bytes, const Extents& n, uint64_t unit, bool input) {
    const uint64_t row = (n.dim + unit - 1) / unit * unit;
    VkattnStrides s{n.heads * n.rows * row, n.rows * row, row};
    switch (bytes.below(6)) {
        case 0:
            s = {n.rows * n.heads * row, row, n.heads * row};
            break;
        case 1: {
            const uint64_t gap = unit * bytes.number(8), seq = row + gap, head = n.rows * seq + gap;
            s = {n.heads * head, head, seq};
            break;
        }
        case 2: {  // far from each other
            const uint64_t seq = std::max(row, unit * bytes.number(34)), head = n.rows * seq;
            s = {n.heads * head, head, seq};
            break;
        }
        case 3:
            if (input) s = {0, bytes.ConsumeBool() ? 0 : s.head, bytes.ConsumeBool() ? 0 : s.seq};
            break;
        default:
            if (row == n.dim) s = core::default_problem().query_strides;
    }
    for (uint64_t* stride : {&s.batch, &s.head, &s.seq}) spoil(bytes, *stride);
    return s;
}

void set_mask(Bytes& bytes, VkattnProblem& p) {
    p.mask = enumerator<VkattnMaskType>(bytes, 3);
    if (p.mask == VKATTN_MASK_NONE) return;
    p.mask_rank = 1 + bytes.below(4);
    const uint32_t full[] = {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv};
    for (uint32_t i = 0; i < p.mask_rank; i++) {
        const uint32_t at = 4 - p.mask_rank + i;
        p.mask_extents[i] = bytes.one_in(3) ? 1 : full[at];
        if (at == 1 && bytes.one_in(4)) p.mask_extents[i] = p.num_heads_kv;
        if (at == 3 && bytes.one_in(4)) p.mask_extents[i] = bytes.below(std::max(1u, full[at]));
        spoil(bytes, p.mask_extents[i]);
    }
    spoil(bytes, p.mask_rank);
    if (bytes.one_in(3)) p.mask_strides = {bytes.number(32), bytes.number(24), bytes.number(24)};
    for (uint64_t* stride : {&p.mask_strides.batch, &p.mask_strides.head, &p.mask_strides.seq})
        spoil(bytes, *stride);
}

uint64_t unit_of(const VkattnProblem& p) {
    return std::clamp<uint64_t>(p.alignment_bytes / core::bytes_of(p.dtype), 1, 64);
}

}  // namespace

uint64_t Bytes::hostile() {
    static constexpr uint64_t numbers[] = {0,
                                           1,
                                           65535,
                                           65536,
                                           0x3fffffff,
                                           0x40000000,
                                           0x40000001,
                                           0x7fffffff,
                                           0x80000000,
                                           0xffffffff,
                                           0x100000000,
                                           uint64_t{1} << 59,
                                           uint64_t{1} << 60,
                                           (uint64_t{1} << 62) - 1,
                                           uint64_t{1} << 62,
                                           INT64_MAX,
                                           uint64_t{1} << 63,
                                           0 - (uint64_t{1} << 31),
                                           UINT64_MAX - 1,
                                           UINT64_MAX};
    return ConsumeBool() ? PickValueInArray(numbers) : number(64);
}

void found(const std::string& what) {
    std::fprintf(stderr, "found: %s\n", what.c_str());
    std::abort();
}

bool has_planted_fault() {
    static const bool planted = std::getenv("VKATTN_FUZZ_FAULT") != nullptr;
    return planted;
}

void check_failure(const core::Failure& f) {
    const bool is_invalid = f.status == VKATTN_INVALID_ARGUMENT;
    check(is_invalid || f.status == VKATTN_UNSUPPORTED, "a failure has another status");
    check(!is_invalid || !f.field.empty(), "an invalid argument has no name");
    check(!f.message.empty(), "a failure has no reason");
    check(f.message.size() < sizeof(VkattnError::message) && f.field.size() < sizeof(VkattnError::field),
          "the text is too long for VkattnError");
    for (const char c : f.message + f.field)
        check(static_cast<unsigned char>(c) >= ' ', "the text has more than one line");
}

VkattnProblem problem_of(Bytes& bytes) {
    VkattnProblem p = core::default_problem();
    p.dtype = enumerator<VkattnDtype>(bytes, 3);
    if (bytes.one_in(4))
        for (VkattnDtype* dtype : {&p.key_dtype, &p.value_dtype, &p.out_dtype, &p.mask_dtype})
            *dtype = bytes.ConsumeBool() ? enumerator<VkattnDtype>(bytes, 3)
                                         : static_cast<VkattnDtype>(VKATTN_DTYPE_Q8_0 + bytes.below(10));
    p.batch = static_cast<uint32_t>(bytes.one_in(8) ? bytes.number(16) : bytes.below(4));
    p.num_heads_kv = 1 + static_cast<uint32_t>(bytes.one_in(8) ? bytes.number(15) : bytes.below(4));
    p.num_heads_q = p.num_heads_kv * (1 + (bytes.ConsumeBool() ? bytes.below(most_heads) : 0));
    p.seqlen_q = length_of(bytes);
    p.seqlen_kv = bytes.one_in(3) ? p.seqlen_q : length_of(bytes);
    p.head_dim_qk = head_dim_of(bytes);
    p.head_dim_v = bytes.one_in(3) ? head_dim_of(bytes) : p.head_dim_qk;
    p.softmax_scale = scale_of(bytes, p.softmax_scale);
    p.softcap = scale_of(bytes, bytes.one_in(4) ? 30.0f : 0.0f);
    p.causal = bytes.ConsumeBool();
    for (int64_t* window : {&p.window_left, &p.window_right}) {
        if (bytes.one_in(3)) *window = static_cast<int64_t>(bytes.number(34));
        spoil(bytes, *window);
    }
    p.align = enumerator<VkattnAlign>(bytes, 4);
    p.query_offset = static_cast<int64_t>(bytes.number(32)) * (bytes.ConsumeBool() ? 1 : -1);
#define ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text) \
    if (bytes.one_in(3)) ask;
#define FORWARD_ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text)
#include "interface/arrays.def"
    for (uint32_t* field : {&p.batch, &p.num_heads_q, &p.num_heads_kv, &p.seqlen_q, &p.seqlen_kv,
                            &p.head_dim_qk, &p.head_dim_v, &p.causal, &p.kv_lengths})
        spoil(bytes, *field);
    spoil(bytes, p.query_offset);
    for (uint32_t* size : {&p.block_rows, &p.block_keys})
        *size = 16 * static_cast<uint32_t>(bytes.number(27));
    if (bytes.ConsumeBool()) p.block_map_batches = p.batch;
    if (bytes.ConsumeBool()) p.block_map_heads = p.num_heads_q;
    set_mask(bytes, p);
    if (core::has_single_bytes(p.key_dtype)) p.key_scales = enumerator<VkattnScales>(bytes, 4);
    if (core::has_single_bytes(p.value_dtype)) p.value_scales = enumerator<VkattnScales>(bytes, 4);
    p.value_in_key = (p.head_dim_v <= p.head_dim_qk || bytes.one_in(8)) && bytes.one_in(8);
    if (p.slopes != VKATTN_SLOPES_NONE) p.slopes = enumerator<VkattnSlopes>(bytes, 3);
    p.slopes_apply = enumerator<VkattnSlopesApply>(bytes, bytes.one_in(3) ? 2 : 1);
    if (bytes.one_in(2)) p.alignment_bytes = core::bytes_of(p.dtype) << bytes.below(5);
    spoil(bytes, p.alignment_bytes);
    const Extents query{p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk},
        key{p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk};
    p.query_strides = strides_of(bytes, query, unit_of(p), true);
    p.key_strides = strides_of(bytes, key, unit_of(p), true);
    p.value_strides = strides_of(bytes, {key.batch, key.heads, key.rows, p.head_dim_v}, unit_of(p), true);
    p.out_strides =
        strides_of(bytes, {query.batch, query.heads, query.rows, p.head_dim_v}, unit_of(p), false);
    return p;
}

VkattnBackward backward_of(Bytes& bytes, const VkattnProblem& p) {
    VkattnBackward b = core::default_backward();
    b.dlse = bytes.ConsumeBool();
    b.dsinks = bytes.ConsumeBool();
    b.dbias = p.mask == VKATTN_MASK_FLOAT && bytes.ConsumeBool();
    spoil(bytes, b.dbias);
    const uint64_t unit = unit_of(p), q = p.seqlen_q, kv = p.seqlen_kv;
    b.dout_strides = strides_of(bytes, {p.batch, p.num_heads_q, q, p.head_dim_v}, unit, true);
    b.dquery_strides = strides_of(bytes, {p.batch, p.num_heads_q, q, p.head_dim_qk}, unit, false);
    b.dkey_strides = strides_of(bytes, {p.batch, p.num_heads_kv, kv, p.head_dim_qk}, unit, false);
    b.dvalue_strides = strides_of(bytes, {p.batch, p.num_heads_kv, kv, p.head_dim_v}, unit, false);
    return b;
}

VkattnCombine combine_of(Bytes& bytes) {
    VkattnCombine c = core::default_combine();
    c.dtype = enumerator<VkattnDtype>(bytes, 3);
    c.parts_dtype = bytes.ConsumeBool() ? c.dtype : enumerator<VkattnDtype>(bytes, 3);
    c.num_parts = 1 + static_cast<uint32_t>(bytes.number(12));
    c.batch = static_cast<uint32_t>(bytes.number(10));
    c.num_heads = 1 + bytes.below(most_heads);
    c.seqlen_q = length_of(bytes);
    c.head_dim_v = head_dim_of(bytes);
    if (bytes.one_in(2)) c.alignment_bytes = 4u << bytes.below(4);
    for (uint32_t* field :
         {&c.num_parts, &c.batch, &c.num_heads, &c.seqlen_q, &c.head_dim_v, &c.alignment_bytes})
        spoil(bytes, *field);
    const Extents n{c.batch, c.num_heads, c.seqlen_q, c.head_dim_v};
    const uint64_t unit = std::clamp<uint64_t>(c.alignment_bytes / 2, 1, 64);
    c.parts_strides = strides_of(bytes, n, unit, true);
    c.out_strides = strides_of(bytes, n, unit, false);
    if (bytes.one_in(3)) c.part_stride = unit * bytes.number(40);
    spoil(bytes, c.part_stride);
    return c;
}

}  // namespace vkattn::fuzz
