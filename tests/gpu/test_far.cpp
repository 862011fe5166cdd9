// Tensors whose rows lie 4 GiB and more apart, in every dimension: where a device address is a host pointer, address
// space costs nothing, and any address that is computed wrong is one that faults.
#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <optional>

#include "backward_run.hpp"
#include "fixture.hpp"
#include "interposer.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// A tensor in a reservation of its own; only the pages that hold rows can be touched.
class FarTensor {
  public:
    FarTensor(const Tensor& dense, const VkattnStrides& far)
        : dense_(dense), far_(far), space_(span_bytes()) {
        if (space_.base() == nullptr) throw RuntimeError("not so much address space");
        each_row([&](std::byte* at, const std::byte* row) {
            space_.enable(static_cast<uint64_t>(at - space_.base()), dense_.row_bytes());
            std::memcpy(at, row, dense_.row_bytes());
        });
    }
    VkDeviceAddress address() const { return reinterpret_cast<uintptr_t>(space_.base()); }
    std::vector<float> read() const {
        std::vector<std::byte> all(dense_.image.size());
        each_row([&](const std::byte* at, const std::byte* row) {
            std::memcpy(all.data() + (row - dense_.image.data()), at, dense_.row_bytes());
        });
        return dense_.gather(all);
    }

  private:
    uint64_t offset(uint64_t b, uint64_t h, uint64_t s) const {
        return (b * far_.batch + h * far_.head + s * far_.seq) * element_bytes(dense_.dtype);
    }
    uint64_t span_bytes() const {
        return offset(dense_.batch - 1, dense_.heads - 1, dense_.seqlen - 1) + dense_.row_bytes();
    }
    template <class Body>
    void each_row(Body body) const {
        dense_.for_each_row([&](uint64_t b, uint64_t h, uint64_t s) {
            body(space_.base() + offset(b, h, s), dense_.row(b, h, s));
        });
    }

    Tensor dense_;
    VkattnStrides far_;
    Reservation space_;
};

// A dense float mask of rank 4.
Tensor mask_tensor(const VkattnProblem& p, const Inputs& inputs) {
    const uint64_t heads = p.mask_extents[1], rows = p.mask_extents[2], columns = p.mask_extents[3];
    const VkattnStrides strides{heads * rows * columns, rows * columns, columns};
    return {p.mask_extents[0], heads, rows, columns, strides, p.dtype, inputs.mask_image};
}

// One forward over far tensors, or a far mask beside dense ones.
struct FarForward {
    FarForward(Device& device, const Plan& plan, const Case& dense, const Inputs& inputs,
               const VkattnStrides& far)
        : masked(dense.problem.mask != VKATTN_MASK_NONE),
          query(inputs.query, masked ? inputs.query.strides : far),
          key(inputs.key, masked ? inputs.key.strides : far),
          value(inputs.value, masked ? inputs.value.strides : far),
          out(tensor_of(dense, 3), masked ? tensor_of(dense, 3).strides : far),
          scratch(device) {
        if (masked) args.mask = mask.emplace(mask_tensor(dense.problem, inputs), far).address();
        args.query = query.address();
        args.key = key.address();
        args.value = value.address();
        args.out = out.address();
        scratch.add_scratch(plan, args);
    }
    bool masked;
    FarTensor query, key, value, out;
    std::optional<FarTensor> mask;
    RunMemory scratch;
    VkattnForwardArgs args = forward_args();
};

// Two at once, without anything in between. Returns why the device cannot do it, "" if it can.
std::string run_far(Device& device, const Context& context, const std::string& text,
                    const VkattnStrides& far) {
    CAPTURE(text);
    const Case dense = parse_case(text, "here");
    Case c = dense;
    if (c.problem.mask != VKATTN_MASK_NONE)
        c.problem.mask_strides = far;
    else
        c.problem.query_strides = c.problem.key_strides = c.problem.value_strides = c.problem.out_strides =
            far;
    std::optional<Plan> planned;
    try {
        planned.emplace(context, c.problem, c.options());
    } catch (const Error& e) {
        if (!is_quirk(e.message())) throw;
        return e.message();
    }
    const Inputs inputs = make_inputs(dense);
    std::list<FarForward> forwards;
    for (int t = 0; t < 2; t++) forwards.emplace_back(device, *planned, dense, inputs, far);
    device.runtime().submit([&](VkCommandBuffer commands) {
        for (const FarForward& forward : forwards) planned->cmd_forward(commands, forward.args);
    });
    const Expected expected = expect(dense, inputs);
    for (const FarForward& forward : forwards) {
        CHECK(compare(Outcome{forward.out.read(), {}}, expected) == "");
        CHECK(forward.scratch.damage() == "");
    }
    return "";
}

using FarRuns = std::vector<std::pair<std::string, VkattnStrides>>;

// The tensors of a backward that lie far apart, a bit each: query, key, value, out; dquery, dkey, dvalue, dout; mask.
constexpr uint32_t far_tensors = 0xff, far_mask = 0x100;

// As run_far.
std::string run_far_backward(Device& device, VkattnContext* context, const std::string& text,
                             const VkattnStrides& far, uint32_t which) {
    CAPTURE(text);
    CAPTURE(which);
    const Case dense = parse_case(text, "here");
    Case c = dense;
    for (int t = 0; t < 4; t++) {
        if ((which >> t & 1) != 0) strides_of(c.problem, t) = far;
        c.gradient_strides[static_cast<size_t>(t)] =
            (which >> t & 16) != 0 ? far : vkattn::problem().out_strides;
    }
    if (which == far_mask) c.problem.mask_strides = far;
    std::optional<Plan> planned;
    try {
        planned.emplace(backward_plan_of(context, c));
    } catch (const Error& e) {
        if (!is_quirk(e.message())) throw;
        return e.message();
    }
    using A = VkattnBackwardArgs;
    const BackwardInputs inputs(dense);
    const Inputs& f = inputs.forward;
    const std::pair<VkDeviceAddress A::*, const Tensor*> tensors[] = {
        {&A::query, &f.query},  {&A::key, &f.key},  {&A::value, &f.value},  {&A::out, &inputs.out},
        {&A::dquery, &f.query}, {&A::dkey, &f.key}, {&A::dvalue, &f.value}, {&A::dout, &inputs.dout}};
    A args = backward_args();
    std::deque<FarTensor> placed;
    for (const auto& [address, tensor] : tensors) {
        const bool is_far = (which >> placed.size() & 1) != 0;
        args.*address = placed.emplace_back(*tensor, is_far ? far : tensor->strides).address();
    }
    if (which == far_mask) args.mask = placed.emplace_back(mask_tensor(c.problem, f), far).address();
    RunMemory memory(device);
    args.lse = memory.input("lse", std::as_bytes(std::span(inputs.lse)));
    if (which == far_mask) args.dbias = memory.output("dbias", f.mask_image.size());
    memory.add_scratch(*planned, args);
    device.runtime().submit([&](VkCommandBuffer commands) { planned->cmd_backward(commands, args); });
    Gradients got{placed[4].read(), placed[5].read(), placed[6].read(), {}, {}};
    if (which == far_mask) got.mask = mask_tensor(c.problem, f).gather(memory.content("dbias"));
    CHECK(compare(got, expect_gradients(dense, inputs)) == "");
    CHECK(memory.damage() == "");
    return "";
}

// All tensors at once, and each by itself, which alone must make offsets within a tile too long for 32 bits.
void run_far_backwards(Device& device, VkattnContext* context, const std::string& words) {
    constexpr uint64_t gib = uint64_t{1} << 30;  // strides are in elements
    const VkattnStrides all{90 * gib + 10, 14 * gib + 6, 2 * gib + 3}, rows{100 * gib, 8, gib - 3};
    std::string why =
        run_far_backward(device, context, "b=2 hq=6 hkv=3 sq=5 skv=6 causal" + words, all, far_tensors);
    // Each stride fits 32 bits, the distances do not.
    run_far_backward(device, context, "b=2 h=3 sq=9 skv=11 window=6,5" + words,
                     {gib - 1, gib / 4 + 7, gib / 50 + 5}, far_tensors);
    for (uint32_t t = 0; t < 8; t++)
        run_far_backward(device, context, "b=2 sq=37 skv=41 causal" + words, rows, 1u << t);
    if (words.find("materialized") == words.npos)
        run_far_backward(device, context, "b=2 h=2 sq=5 skv=6 mask=float mask_shape=2,2,5,6" + words, all,
                         far_mask);
    if (!why.empty()) skip("backwards of far tensors: " + why);
}

// Every run in turn; what a driver cannot do is said once.
void run_all(Device& device, const Context& context, const FarRuns& runs) {
    std::map<std::string, int> refused;
    for (const auto& [text, far] : runs)
        if (const std::string why = run_far(device, context, text, far); !why.empty()) refused[why]++;
    for (const auto& [why, times] : refused) skip(fmt::format("{} of {} runs: {}", times, runs.size(), why));
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "rows of tensors, or of a mask, may lie more than 4 GiB apart") {
    if (!device.has_guard_pages()) return skip("rows 4 GiB apart: addresses are no host pointers here");
    constexpr uint64_t gib = uint64_t{1} << 30;  // strides are in elements of 4 bytes
    const VkattnStrides all{90 * gib + 10, 14 * gib + 6, 2 * gib + 3}, batches{9 * gib + 1, 700, 9},
        heads{9 * gib + 1, 5 * gib, 43};
    const FarRuns runs = {
        {"b=2 hq=6 hkv=3 sq=5 skv=6 causal", all},
        {"b=2 hq=6 hkv=3 sq=5 skv=6 causal kernel=materialized", all},
        {"b=3 h=2 sq=37 skv=41 window=30,2", batches},
        // Each stride fits 32 bits, the distances do not: those of batches, and those of rows of one tile.
        {"b=2 h=3 sq=9 skv=11 window=6,5", {gib - 1, gib / 4 + 7, gib / 50 + 5}},
        {"b=2 sq=37 skv=41 causal", {100 * gib, 8, gib - 3}},
        {"b=2 hq=6 hkv=3 sq=5 skv=6 causal mask=float mask_shape=2,6,5,6", all},
        {"b=2 hq=6 hkv=2 sq=5 skv=6 mask=float mask_shape=2,3,5,6", all},
        {"b=2 hq=6 hkv=2 sq=5 skv=6 mask=float mask_shape=2,3,5,6 kernel=tiles", heads},
        {"b=2 hq=6 hkv=2 sq=37 skv=41 mask=float mask_shape=2,2,37,41", heads},
        {"b=2 sq=37 skv=41 causal mask=float mask_shape=2,1,37,41", {100 * gib, 8, gib - 3}}};
    run_all(device, context, runs);
}

TEST_CASE_FIXTURE(Recorded, "rows of a tile may lie as far apart as 31-bit offsets reach") {
    if (!device.has_guard_pages()) return skip("rows far apart: addresses are no host pointers here");
    // Just below and just above for tiles of 8, 16, 32, ... rows, whichever this device has: in elements, in bytes.
    FarRuns runs;
    for (const uint64_t reach : {uint64_t{1} << 31, uint64_t{1} << 29})
        for (uint64_t tile = 8; tile <= 256; tile *= 2)
            for (const uint64_t beyond : {0u, 1u})
                runs.push_back({"sq=70 skv=70", {0, 0, (reach - VKATTN_MAX_HEAD_DIM) / tile + beyond}});
    run_all(device, context, runs);
}

TEST_CASE_FIXTURE(Recorded, "rows of a backward may lie more than 4 GiB apart") {
    if (!device.has_guard_pages()) return skip("a backward's rows: addresses are no host pointers here");
    run_far_backwards(device, context.get(), "");
    run_far_backwards(device, context.get(), " kernel=materialized");
}

TEST_CASE_FIXTURE(OnDevice, "rows of a backward on matrix units may lie more than 4 GiB apart") {
    if (!device.has_guard_pages()) return skip("a backward's rows: addresses are no host pointers here");
    if (!device.has_matrix_unit(VKATTN_DTYPE_FLOAT16)) return skip("a backward's far rows: no matrix units");
    run_far_backwards(device, runtime.context(), " dtype=f16 kernel=matrix");
}
