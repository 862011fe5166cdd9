// Validation: a caller's VkattnProblem becomes a Problem in which every default is resolved, or a Failure
// that names the field. Independent of any device.
#pragma once

#include <array>
#include <cstdint>

#include "result.hpp"
#include "vkattn/types.h"

namespace vkattn::core {

// A type's elements are stored in blocks: `elements` of them take `bytes` bytes. A float type has one element a block.
struct Storage {
    uint32_t elements = 1, bytes = 4;
    constexpr bool has_blocks() const { return elements != 1; }
    // Returns the bytes of `count` elements, which fill whole blocks.
    constexpr uint64_t bytes_of(uint64_t count) const { return count / elements * bytes; }
    // Returns the least alignment of addresses, in bytes.
    constexpr uint32_t alignment() const { return has_blocks() ? 2 : bytes; }
};

uint32_t bytes_of(VkattnDtype dtype);  // of a type that is not stored in blocks

struct Problem : VkattnProblem {
    uint32_t element_bytes = 4;  // of the dtype; the functions at the end say how an operand is stored
    uint32_t group_size = 1;
    // Query row i sees key j only if i + bound_lo <= j <= i + bound_hi: causal, window and offset folded into
    // one band, cut to what the sequence lengths can tell apart, so that i + bound never overflows.
    // If each batch has its own offset (dynamic_bounds), that is still to be added, and INT32_MIN and
    // INT32_MAX mean unbounded.
    int32_t bound_lo = 0;
    int32_t bound_hi = 0;
    bool dynamic_bounds = false;
    int32_t position = 0;         // what is folded into the bounds: a query row stands at key i + this
    bool follow_lengths = false;  // the batch's offset is its kv length plus what is folded into the bounds
    // Keys from here on are hidden: past a mask's short last extent; else seqlen_kv.
    uint32_t key_limit = 0;
    uint64_t mask_shape[4] = {};   // batch, head, query, key; all 0: no mask
    uint32_t mask_group_size = 1;  // query heads that read the same mask head
    bool mask_per_key = false;     // false: one element for all keys of a row

    bool empty_output() const { return batch == 0 || seqlen_q == 0; }
    // True if every stride in bytes fits 32 bits.
    bool narrow_strides() const;
    // True if offsets within a tile fit 31 bits, in bytes. Packed: a query tile holds rows of all heads of a group.
    bool narrow_rows(uint32_t tile_q, uint32_t tile_kv, bool packed) const;
    // Keys begin .. end-1 that some row of first .. last may see, as far as is known without the batch's lengths.
    struct Keys {
        uint64_t begin, end;
    };
    Keys visible_keys(uint64_t first_row, uint64_t last_row) const;

    // How operands are stored. Nobody else derives it from the dtype. Tensors 0 .. 3 are query, key, value, out.
    const VkattnStrides& strides(int tensor) const {
        const VkattnStrides* all[] = {&query_strides, &key_strides, &value_strides, &out_strides};
        return *all[tensor];
    }
    VkattnDtype dtype_of(int tensor) const {
        const VkattnDtype all[] = {dtype, key_dtype, value_dtype, out_dtype};
        return all[tensor];
    }
    Storage storage_of(int tensor) const;
    // Returns the bytes of an element, rounded up where a block has a fraction of a byte more.
    uint32_t element_bytes_of(int tensor) const {
        const Storage s = storage_of(tensor);
        return (s.bytes + s.elements - 1) / s.elements;
    }
    // True if some operand is not of the problem's type.
    bool has_mixed_types() const;
    // True if query, key and value are stored in one type of 16 bits, as units multiply them, and all else is, too.
    bool is_all_16bit() const { return dtype != VKATTN_DTYPE_FLOAT32 && !has_mixed_types(); }
    // True if eight elements of a key or a value take six registers at most while they are on their way: 16 bytes of
    // 16 bits take four, blocks take up to six. H200, D128, q8_0: 2.37 ms with a row for wide loads, 2.37 without.
    bool has_narrow_keys() const {
        return key_dtype != VKATTN_DTYPE_FLOAT32 && value_dtype != VKATTN_DTYPE_FLOAT32;
    }
    // The bytes of which the tensor's address and its strides are multiples.
    uint32_t alignment_of(int tensor) const {
        const Storage s = storage_of(tensor);
        return !s.has_blocks() && alignment_bytes > s.alignment() ? alignment_bytes : s.alignment();
    }
    uint32_t mask_element_bytes() const;
    uint32_t dbias_element_bytes() const { return bytes_of(mask_dtype); }
    // Strides in bytes: batch, head, seq of query, of key, of value, of out.
    std::array<uint64_t, 12> stride_bytes() const;
};

// A resolved VkattnBackward of a Problem.
struct Backward : VkattnBackward {
    uint64_t dbias_extents[4] = {};  // batch, head, query, key; all 0: not wanted
    uint64_t dbias_elements() const {
        return dbias_extents[0] * dbias_extents[1] * dbias_extents[2] * dbias_extents[3];
    }
    bool has_bias() const { return dbias_elements() != 0; }
    const VkattnStrides& strides(int tensor) const {  // 0 .. 3: dout, dquery, dkey, dvalue
        const VkattnStrides* all[] = {&dout_strides, &dquery_strides, &dkey_strides, &dvalue_strides};
        return *all[tensor];
    }
    // The tensor of the problem that this one is shaped, stored and aligned like.
    static int like(int tensor) { return tensor == 0 ? 3 : tensor - 1; }
    // As those of the problem, in the order dout, dquery, dkey, dvalue.
    std::array<uint64_t, 12> stride_bytes(const Problem& problem) const;
};

// A resolved VkattnCombine: strides in elements, none of them VKATTN_CONTIGUOUS.
struct Combine : VkattnCombine {
    uint32_t element_bytes = 4, parts_element_bytes = 4;
};

// Offsets within a tile are narrow if they are below this. Shaders index elements, but SwiftShader multiplies an index
// into bytes in 32 bits, with a sign.
constexpr uint64_t narrow_offset_bytes = uint64_t{1} << 31;
// The most elements that rows of a tile may lie apart for that, with a row's own elements behind.
constexpr uint64_t narrow_elements(uint32_t element_bytes) {
    return narrow_offset_bytes / element_bytes - VKATTN_MAX_HEAD_DIM;
}

VkattnProblem default_problem();
VkattnCombine default_combine();
VkattnBackward default_backward();
VkattnOptions default_options();

Result<Problem> resolve(const VkattnProblem& given);
Result<Combine> resolve(const VkattnCombine& given);
Result<Backward> resolve(const Problem& problem, const VkattnBackward& given);
Storage storage_of(VkattnDtype dtype);
bool has_single_bytes(VkattnDtype dtype);  // int8 or an 8-bit float, which may have scales
const char* name_of(VkattnDtype dtype);

}  // namespace vkattn::core
