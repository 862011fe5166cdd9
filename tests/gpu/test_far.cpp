// Tensors whose rows lie 4 GiB and more apart, in every dimension: where a device address is a host pointer, address
// space costs nothing, and any address that is computed wrong is one that faults.
#include <cstring>

#include "forward_run.hpp"
#include "interposer.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr uint64_t gib = uint64_t{1} << 30;

// A tensor in a reservation of its own; only the pages that hold rows can be touched.
class FarTensor {
  public:
    FarTensor(const Tensor& dense, const VkattnStrides& far)
        : dense_(dense), far_(far), space_(span_bytes()) {
        if (space_.base() == nullptr) return;
        each_row(
            [&](uint64_t at, uint64_t) { space_.enable(at * sizeof(float), dense_.dim * sizeof(float)); });
    }
    bool exists() const { return space_.base() != nullptr; }
    VkDeviceAddress address() const { return reinterpret_cast<uintptr_t>(space_.base()); }

    void write() {
        each_row([&](uint64_t at, uint64_t row) {
            std::memcpy(space_.base() + at * sizeof(float), dense_.image.data() + row,
                        dense_.dim * sizeof(float));
        });
    }
    std::vector<float> read() {
        std::vector<float> all(dense_.image.size());
        each_row([&](uint64_t at, uint64_t row) {
            std::memcpy(all.data() + row, space_.base() + at * sizeof(float), dense_.dim * sizeof(float));
        });
        return all;
    }

  private:
    uint64_t span_bytes() const {
        return ((dense_.batch - 1) * far_.batch + (dense_.heads - 1) * far_.head +
                (dense_.seqlen - 1) * far_.seq + dense_.dim) *
               sizeof(float);
    }
    template <class Body>
    void each_row(Body body) {
        for (uint64_t b = 0; b < dense_.batch; b++)
            for (uint64_t h = 0; h < dense_.heads; h++)
                for (uint64_t s = 0; s < dense_.seqlen; s++)
                    body(b * far_.batch + h * far_.head + s * far_.seq, dense_.at(b, h, s));
    }

    Tensor dense_;
    VkattnStrides far_;
    Reservation space_;
};

void run_far(Device& device, VkattnContext* context, const Case& dense, const VkattnStrides& far) {
    const Inputs inputs = make_inputs(dense);
    FarTensor query(inputs.query, far), key(inputs.key, far), value(inputs.value, far),
        out(tensor_of(dense, 3), far);
    if (!query.exists() || !key.exists() || !value.exists() || !out.exists())
        return skip("rows 4 GiB apart: there is not so much address space");
    for (FarTensor* tensor : {&query, &key, &value, &out}) tensor->write();
    Case c = dense;
    c.problem.query_strides = c.problem.key_strides = c.problem.value_strides = c.problem.out_strides = far;
    const Plan plan(context, c.problem, c.options());
    Guarded scratch(device, plan.scratch().size_bytes, Place::end, 256);
    VkattnForwardArgs args = forward_args();
    args.query = query.address();
    args.key = key.address();
    args.value = value.address();
    args.out = out.address();
    args.scratch_buffer = scratch.buffer();
    args.scratch_offset = scratch.offset_bytes();
    args.scratch_address = scratch.address();
    device.runtime().submit([&](VkCommandBuffer commands) { plan.cmd_forward(commands, args); });
    CHECK(compare(Outcome{out.read(), {}}, expect(dense, inputs)) == "");
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "rows may lie more than 4 GiB apart") {
    if (!device.has_guard_pages()) return skip("rows 4 GiB apart: addresses are no host pointers here");
    const VkattnStrides wide{45 * gib + 10, 14 * gib + 6, 2 * gib + 3},
        narrow{gib - 1, gib / 4 + 7, gib / 50 + 5};
    for (const char* text : {"b=2 h=3 sq=5 skv=6 causal", "b=2 h=3 sq=5 skv=6 causal kernel=materialized"}) {
        CAPTURE(std::string(text));
        run_far(device, context.get(), parse_case(text, "here"), wide);
    }
    // Each stride fits 32 bits, the distances do not.
    run_far(device, context.get(), parse_case("b=2 h=3 sq=9 skv=11 window=6,5", "here"), narrow);
}
