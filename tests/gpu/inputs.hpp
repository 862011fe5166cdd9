// The tensors of a case as they lie in memory, and what is in them.
#pragma once

#include <span>

#include "cases.hpp"
#include "storage.hpp"

namespace vkattn::test {

// A strided tensor; whatever no element covers is poison.
struct Tensor {
    uint64_t batch = 0, heads = 0, seqlen = 0, dim = 0;
    VkattnStrides strides{};
    VkattnDtype dtype = VKATTN_DTYPE_FLOAT32;
    std::vector<std::byte> image;
    std::vector<float> scales = {};  // what each row's elements are multiplied by, dense; empty: 1

    double scale_of(uint64_t b, uint64_t h, uint64_t s) const {
        return scales.empty() ? 1 : static_cast<double>(scales[(b * heads + h) * seqlen + s]);
    }
    uint64_t at(uint64_t b, uint64_t h, uint64_t s) const {  // the element where a row begins
        return b * strides.batch + h * strides.head + s * strides.seq;
    }
    uint64_t span() const;  // in elements
    uint64_t row_bytes() const { return bytes_of(dtype, dim); }
    std::byte* row(uint64_t b, uint64_t h, uint64_t s) { return image.data() + bytes_of(dtype, at(b, h, s)); }
    const std::byte* row(uint64_t b, uint64_t h, uint64_t s) const {
        return image.data() + bytes_of(dtype, at(b, h, s));
    }
    // body(batch, head, row)
    template <class Body>
    void for_each_row(Body body) const {
        for (uint64_t b = 0; b < batch && dim != 0; b++)
            for (uint64_t h = 0; h < heads; h++)
                for (uint64_t s = 0; s < seqlen; s++) body(b, h, s);
    }
    // Dense, in (batch, head, seq, dim) order, from an image like this tensor's, and back into this tensor's. Elements
    // are multiplied by their scales.
    std::vector<float> gather(std::span<const std::byte> from) const;
    void scatter(std::span<const float> dense);
    // What the elements cover of an image, byte by byte.
    std::vector<bool> covered() const;
};

// What stands where nobody may look, in the elements of the tensor's type.
enum class Poison { nan, infinity, alternating, finite };  // alternating: between the first two

// 0 .. 3: query, key, value, out; strides resolved, image all poison. Throws CaseError if it is too large.
Tensor tensor_of(const Case& c, int tensor, Poison poison = Poison::nan);

// What the address of a tensor of this case is a multiple of, and no more.
uint32_t alignment_of(const Case& c, const Tensor& tensor);

struct Inputs {
    Tensor query, key, value;
    std::vector<double> mask;           // in C order; empty: none
    std::vector<std::byte> mask_image;  // the same in memory, by the mask's strides
};

// The same values for the same case. Keys and values of rows that no query row sees stay poison.
Inputs make_inputs(const Case& c, Poison poison = Poison::nan);
void write_mask_image(const Case& c, Inputs& inputs);  // from `mask`

// The mask at one place, broadcast and all: -inf hides, 0 does nothing. 0 where there is no mask.
double mask_at(const Case& c, const Inputs& inputs, uint64_t b, uint64_t h, uint64_t i, uint64_t j);

// Keys that some query row of some head sees, by the definition, row after row: (batch, num_heads_kv, seqlen_kv).
std::vector<bool> visible_keys(const Case& c, const Inputs& inputs);

// oracle_problem(c), with the mask.
oracle::Problem oracle_problem(const Case& c, const Inputs& inputs);

}  // namespace vkattn::test
