// What runs of numbers that are not finite have in common: which rows see which keys, told by the oracle.
#pragma once

#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "inputs.hpp"

namespace vkattn::test {

// All bits of the NaN are set, so that a rounding to bfloat16 by an addition makes zero of it.
inline constexpr float not_a_number = std::bit_cast<float>(0x7fffffffu),
                       infinity = std::numeric_limits<float>::infinity();

// Rows are those of query, (batch, num_heads_q, seqlen_q), keys those of key, (batch, num_heads_kv, seqlen_kv).
class Visibility {
  public:
    Visibility(const Case& c, const Inputs& inputs);

    size_t rows() const { return rows_; }
    // True if a row sees a key of its own batch and head; `key` counts keys of all batches and heads.
    bool sees(size_t row, size_t key) const {
        return key / keys_ == head_of(row) && weights_[row * keys_ + key % keys_] != 0;
    }
    bool is_empty(size_t row) const;
    // The batch and kv head of a row, in one number.
    size_t head_of(size_t row) const { return row / rows_of_head_ / group_; }

  private:
    size_t rows_, keys_, rows_of_head_, group_;
    std::vector<double> weights_;  // of each key for each row
};

// The last row of a tensor but `back`, of its last batch and head: the index of the row in all of them.
inline size_t row_of_last_head(const Tensor& t, uint64_t row) {
    return (t.batch * t.heads - 1) * t.seqlen + row;
}

// Sets the last element of a row of the tensor's last batch and head, or the factor of its last block.
inline void set_element(Tensor& t, uint64_t row, float x) {
    std::byte* const at = t.row(t.batch - 1, t.heads - 1, row);
    if (const oracle::BlockType* const blocks = blocks_of(t.dtype); blocks == nullptr)
        store(at + (t.dim - 1) * element_bytes(t.dtype), x, t.dtype);
    else if (blocks->single != oracle::Single::no)
        at[t.dim - 1] = oracle::nonfinite_single(blocks->single, x);
    else
        store(at + bytes_of(t.dtype, t.dim - oracle::block_elements), x, VKATTN_DTYPE_FLOAT16);
}

inline bool is_finite(std::span<const float> row) {
    for (const float x : row)
        if (!std::isfinite(x)) return false;
    return true;
}

inline bool is_all_nan(std::span<const float> row) {
    for (const float x : row)
        if (!std::isnan(x)) return false;
    return true;
}

inline std::span<const float> row_of(const std::vector<float>& all, size_t row, size_t dim) {
    return std::span(all).subspan(row * dim, dim);
}

}  // namespace vkattn::test
