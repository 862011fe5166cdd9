// A launch: a pipeline while it is planned. Functions set what launches of different kernels have in common, by the
// names of their constants and push constants. A kernel gets what it has a name for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "build.hpp"
#include "cuts.hpp"

namespace vkattn::core {

// A pipeline while it is planned: the constants and push constants of its kernel by their names.
template <class K>
struct Launch {
    using Kernel = K;
    using Push = typename K::Push;

    Module module;
    typename K::Constants constants;
    Push push;
    std::vector<Patch> patches;
    uint32_t reads = 0, writes = 0;
    bool of_tuning_row = false;

    void patch(size_t at, Region region, uint64_t add = 0) {
        patches.push_back({static_cast<uint32_t>(at), region, add});
    }
    Pipeline pipeline() const {
        Pipeline p{module, {}, {}, patches, reads, writes, of_tuning_row};
        std::memcpy(p.constants.data(), &constants, sizeof constants);
        // Copies field by field, so that padding between fields stays 0.
        for (const FieldInfo& f : info_of(K::id).fields)
            std::memcpy(p.push.data() + f.offset_bytes,
                        reinterpret_cast<const std::byte*>(&push) + f.offset_bytes, f.size_bytes);
        return p;
    }
};
// Makes the recording write the address of a region to a field of the push constants.
#define VKATTN_PATCH(launch, field, ...) \
    (launch).patch(offsetof(typename std::remove_reference_t<decltype(launch)>::Push, field), __VA_ARGS__)

// Returns the module of a kernel that multiplies operands, for a problem and a device. It is the one that the function
// below returns or, if operands have types of their own, the one whose constants say how each is stored.
Module module_for(Kernel kernel, const Problem& problem, const DeviceCaps& caps, bool dot);
// Returns the kernel's module for this storage type and device. `dot` asks for the one with 16-bit dot products, which
// the device must have for this type.
Module module_for(Kernel kernel, VkattnDtype dtype, const DeviceCaps& caps, bool dot = false);
bool has_dot_products(const DeviceCaps& caps, VkattnDtype dtype);
// Fails if this device has no 16-bit dot products for this type.
Result<bool> check_dot_products(const DeviceCaps& caps, VkattnDtype dtype);

// The matrix kernel's launch for this problem.
Launch<kernels::forward_matrix> matrix_launch(const Problem& problem, const TileChoice& tiles);

constexpr const char* needs_one_type = "it is for operands that are all stored in one type";

// TYPE_* of the kernels: they have the numbers of VkattnDtype.
static_assert(TYPE_FLOAT32 == VKATTN_DTYPE_FLOAT32 && TYPE_FLOAT16 == VKATTN_DTYPE_FLOAT16 &&
              TYPE_BFLOAT16 == VKATTN_DTYPE_BFLOAT16 && TYPE_Q8_0 == VKATTN_DTYPE_Q8_0 &&
              TYPE_Q4_0 == VKATTN_DTYPE_Q4_0 && TYPE_Q4_1 == VKATTN_DTYPE_Q4_1 &&
              TYPE_Q5_0 == VKATTN_DTYPE_Q5_0 && TYPE_Q5_1 == VKATTN_DTYPE_Q5_1 &&
              TYPE_IQ4_NL == VKATTN_DTYPE_IQ4_NL && TYPE_INT8 == VKATTN_DTYPE_INT8 &&
              TYPE_E4M3 == VKATTN_DTYPE_FLOAT8_E4M3 && TYPE_E5M2 == VKATTN_DTYPE_FLOAT8_E5M2);
static_assert(SCALES_NONE == VKATTN_SCALES_NONE && SCALES_ONE == VKATTN_SCALES_ONE &&
              SCALES_PER_HEAD == VKATTN_SCALES_PER_HEAD && SCALES_PER_ROW == VKATTN_SCALES_PER_ROW);
constexpr uint32_t type_of(VkattnDtype dtype) {
    return static_cast<uint32_t>(dtype);
}

// The widest load for which rows of a problem are aligned, of those that the portable kernels have: four elements or
// one.
inline uint32_t load_bytes_of(const Problem& p) {
    if (p.has_mixed_types()) return std::min(p.alignment_bytes, 16u);
    return p.alignment_bytes % (4 * p.element_bytes) == 0 ? 4 * p.element_bytes : p.element_bytes;
}

// How q.k becomes a score, which is natural with a float mask and else in base 2 (shaders/lib/scores.glsl).
struct Scales {
    float scale, softcap;
};
Scales scales_of(const Problem& problem);

template <class K>
void set_tile_numbers(Launch<K>& launch, const TileNumbers& n) {
    auto& c = launch.constants;
    if (n.rolled != 0) launch.module = in_cpu_form(launch.module);
    c.threads = n.threads;
    c.lanes = n.lanes;
    c.prefetch = n.prefetch;
    c.unroll = n.unroll;
    c.rows = n.rows;
    if constexpr (requires { c.cols; }) {
        c.cols = n.cols;
        c.chunk = n.chunk;
        c.p_blocks = n.p_blocks;
        c.v_keys = n.v_keys;
    }
}

// The push constants of the problem, and of where its tensors lie.
template <class Push>
void set_problem_push(Push& push, const Problem& p, bool arguments) {
    push.seqlen_q = p.seqlen_q;
    push.seqlen_kv = p.seqlen_kv;
    push.heads = p.num_heads_q | p.group_size << 16;
    const Scales scales = scales_of(p);
    push.score_scale = scales.scale;
    push.score_softcap = scales.softcap;
    push.bound_lo = p.bound_lo;
    push.bound_hi = p.bound_hi;
    if constexpr (requires { push.operand_layout; }) {
        uint32_t* at = push.operand_layout;
        if (!arguments)
            for (const uint64_t stride : p.stride_bytes()) *at++ = static_cast<uint32_t>(stride);
    }
}

// Sets how a module for mixed types decodes query, key and value. Only forward kernels find scales of key and value.
template <class K>
void set_stored_types(Launch<K>& launch, const Problem& p) {
    auto& c = launch.constants;
    c.query_type = type_of(p.dtype);
    c.key_type = type_of(p.key_dtype);
    c.value_type = type_of(p.value_dtype);
    if constexpr (requires { launch.push.operand_layout; }) {
        c.key_scales = p.key_scales;
        c.value_scales = p.value_scales;
        constexpr size_t layout = offsetof(typename Launch<K>::Push, operand_layout), word = sizeof(uint32_t);
        if (p.key_scales != VKATTN_SCALES_NONE)
            launch.patch(layout + word * WORD_OF_KEY_SCALES, Region::key_scales);
        if (p.value_scales != VKATTN_SCALES_NONE)
            launch.patch(layout + word * WORD_OF_VALUE_SCALES,
                         p.value_in_key != 0 ? Region::key_scales : Region::value_scales);
    }
}

template <class K>
void set_problem(Launch<K>& launch, const Problem& p, const TileChoice& tiles, bool arguments) {
    auto& c = launch.constants;
    c.head_dim_qk = p.head_dim_qk;
    c.head_dim_v = p.head_dim_v;
    c.load_bytes = load_bytes_of(p);
    c.has_arguments = arguments;
    c.far_rows = !p.narrow_rows(tiles.tile_q(), tiles.tile_kv(), tiles.pack);
    c.packed_heads = tiles.pack;
    set_term_constants(c, p);
    c.pool_vec4 = tiles.pool_vec4;
    c.isolates_rows = tiles.isolates_rows;
    c.exp2_loses_nan = tiles.exp2_loses_nan;
    if constexpr (requires { c.holds_blocks; }) c.holds_blocks = tiles.holds_blocks;
    c.out_type = type_of(p.out_dtype);
    c.mask_type = type_of(p.mask_dtype);
    if constexpr (requires { c.key_type; })
        if (launch.module.has(macros::MIXED)) set_stored_types(launch, p);
    set_problem_push(launch.push, p, arguments);
    if (!arguments) return;
    if constexpr (requires { launch.push.operand_layout; })
        VKATTN_PATCH(launch, operand_layout, Region::arguments);
    else
        VKATTN_PATCH(launch, arguments, Region::arguments);
    launch.reads |= bit(Region::arguments);
    for (const OptionalArray& array : optional_arrays(p))
        if (array.given) launch.reads |= bit(array.region);
}

// A launch of a kernel with the row's tiles.
template <class K>
Launch<K> tile_launch(const Problem& problem, const Module& module, const TileChoice& tiles, bool arguments) {
    Launch<K> launch;
    launch.module = module;
    set_tile_numbers(launch, tiles.numbers);
    set_problem(launch, problem, tiles, arguments);
    return launch;
}

}  // namespace vkattn::core
