// 16-bit results, bit by bit: to nearest, ties to even. The error rule cannot tell ties that go up from ties that go
// to even, because both are half an ulp away. Every result here is exact in float32, and half-way between two 16-bit
// numbers that stand side by side; all finite numbers of the type have their turn.
#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "backward_run.hpp"
#include "case_suite.hpp"
#include "interposer.hpp"
#include "skip.hpp"
#include "vulkan/context.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr uint32_t dim = 64;

// Pairs of neighbours, which are a number and the next larger one, with changing signs. A head has `dim` of them.
struct Neighbours {
    explicit Neighbours(VkattnDtype type) : dtype(type) {
        // bfloat16 goes without numbers that float32 arithmetic flushes to zero, and those whose sum is infinite.
        const bool f16 = type == VKATTN_DTYPE_FLOAT16;
        const uint32_t begin = f16 ? 0 : 0x0100, end = f16 ? 0x7bff : 0x7eff;
        for (uint32_t bits = begin; bits < end; bits++) {
            const float sign = bits % 3 == 1 ? -1.0f : 1.0f;
            first.push_back(sign * value_of(static_cast<uint16_t>(bits)));
            second.push_back(sign * value_of(static_cast<uint16_t>(bits + 1)));
        }
        while (first.size() % dim != 0) {
            first.push_back(1);
            second.push_back(1);
        }
    }
    float value_of(uint16_t bits) const { return load(reinterpret_cast<const std::byte*>(&bits), dtype); }
    uint32_t heads() const { return static_cast<uint32_t>(first.size() / dim); }
    // Returns the mean of pair i, rounded to the type.
    float mean(size_t i) const {
        return static_cast<float>(
            rounded((static_cast<double>(first[i]) + static_cast<double>(second[i])) / 2, dtype));
    }

    VkattnDtype dtype;
    std::vector<float> first, second;
};

// Returns two rows of `dim` for each head: `first`, and factor * `second`.
std::vector<float> two_rows(const Neighbours& n, float factor) {
    std::vector<float> dense;
    for (size_t h = 0; h < n.heads(); h++) {
        for (size_t d = 0; d < dim; d++) dense.push_back(n.first[h * dim + d]);
        for (size_t d = 0; d < dim; d++) dense.push_back(factor * n.second[h * dim + d]);
    }
    return dense;
}

// Returns rows for each head: row i begins with of_rows[i], the rest of it is zeros.
std::vector<float> units(const Neighbours& n, uint32_t row_dim, std::vector<float> of_rows) {
    std::vector<float> dense;
    for (size_t h = 0; h < n.heads(); h++)
        for (const float x : of_rows)
            for (uint32_t d = 0; d < row_dim; d++) dense.push_back(d == 0 ? x : 0.0f);
    return dense;
}

void fill(Tensor& tensor, float x) {
    tensor.scatter(std::vector<float>(tensor.batch * tensor.heads * tensor.seqlen * tensor.dim, x));
}

// Compares row `row` of every head with the means, times `sign`, bit by bit. Returns the first that differs, or "".
std::string flaw_of(const Neighbours& n, const std::vector<float>& got, uint32_t rows, uint32_t row,
                    float sign) {
    for (size_t i = 0; i < n.first.size(); i++) {
        const float x = got[(i / dim * rows + row) * dim + i % dim], expected = sign * n.mean(i);
        if (std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(expected)) continue;
        if (x == 0 && expected == 0) continue;  // of either sign
        return fmt::format("between {} and {}: {}, not {}", n.first[i], n.second[i], x, expected);
    }
    return "";
}

Case case_of(const Neighbours& n, const std::string& words) {
    return parse_case(fmt::format("h={} dtype={} {}", n.heads(), name_of(n.dtype), words), "here");
}

// Two keys have equal weights, so out is the mean of their values. Returns the first element that is not, or "".
std::string forward_flaw(Device& device, VkattnContext* context, const Neighbours& n,
                         const std::string& words) {
    const Case c = case_of(n, fmt::format("sq=1 skv=2 dv={} scale=1 {}", dim, words));
    Inputs inputs = make_inputs(c);
    fill(inputs.query, 0);
    inputs.value.scatter(two_rows(n, 1));
    return flaw_of(n, run_forward(device, plan_of(context, c), c, inputs).out, 1, 0, 1);
}

// Two keys with dP of 1 and -1 and weights of 1/2: dS is 1/2 and -1/2, delta is 0. So dquery is half the difference
// of the keys, where queries are 0; and dkey of the first key is the mean of two queries, where keys are 0.
Gradients run_backward(Device& device, VkattnContext* context, const Neighbours& n, const std::string& words,
                       bool of_query) {
    const Case c =
        case_of(n, fmt::format("sq={} skv=2 dqk={} dv=8 scale=1 {}", of_query ? 1 : 2, dim, words));
    BackwardInputs inputs(c);
    fill(inputs.forward.query, 0);
    fill(inputs.forward.key, 0);
    (of_query ? inputs.forward.key : inputs.forward.query).scatter(two_rows(n, of_query ? -1.0f : 1.0f));
    inputs.forward.value.scatter(units(n, 8, {1, -1}));
    inputs.dout.scatter(units(n, 8, std::vector<float>(of_query ? 1 : 2, 1.0f)));
    fill(inputs.out, 0);
    inputs.lse.assign(inputs.lse.size(), std::log(2.0f));
    const Plan plan = backward_plan_of(context, c);
    const auto [gradients, damage] = BackwardMemory(device, plan, c, inputs).run(plan);
    CHECK(damage == "");
    return gradients;
}

constexpr VkattnDtype dtypes[] = {VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16};

// Returns a context whose modules use 16-bit storage, where the device has it, and one whose modules do not.
std::vector<VkattnContext*> contexts(Device& device) {
    VkattnContext* const own = device.runtime().context();
    if (!own->caps.storage_16bit) return {own};
    return {own, shared_context().get()};
}

}  // namespace

TEST_CASE_FIXTURE(OnDevice, "16-bit results of the forward are rounded to even") {
    for (VkattnContext* const own : contexts(device))
        for (const VkattnDtype dtype : dtypes) {
            const Neighbours n(dtype);
            // Stored four at a time, and one by one.
            for (const char* words : {"kernel=tiles align_bytes=16", "kernel=tiles",
                                      "kernel=rows align_bytes=16", "kernel=rows"}) {
                CAPTURE(std::string(name_of(dtype)));
                CAPTURE(words);
                CHECK(forward_flaw(device, own, n, words) == "");
            }
        }
}

TEST_CASE_FIXTURE(OnDevice, "16-bit results of matrix units are rounded to even") {
    bool any = false;
    for (const VkattnDtype dtype : dtypes) {
        if (!device.has_matrix_unit(dtype)) continue;
        any = true;
        const Neighbours n(dtype);
        for (const char* words : {"kernel=matrix align_bytes=16", "kernel=matrix tuning=running=0,chunk=0",
                                  "kernel=matrix_khr"}) {
            CAPTURE(words);
            CHECK(forward_flaw(device, runtime.context(), n, words) == "");
        }
    }
    if (!any) skip("rounding of matrix units: " + device.info().name + " has none");
}

TEST_CASE_FIXTURE(OnDevice, "16-bit gradients are rounded to even") {
    for (VkattnContext* const own : contexts(device))
        for (const VkattnDtype dtype : dtypes) {
            const Neighbours n(dtype);
            for (const char* words : {"align_bytes=16", ""}) {
                CAPTURE(std::string(name_of(dtype)));
                CAPTURE(words);
                CHECK(flaw_of(n, run_backward(device, own, n, words, true).query, 1, 0, 1) == "");
                const Gradients g = run_backward(device, own, n, words, false);
                CHECK(flaw_of(n, g.key, 2, 0, 1) == "");
                CHECK(flaw_of(n, g.key, 2, 1, -1) == "");
            }
        }
}
