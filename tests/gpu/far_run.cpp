// Runs a case with `far`: its tensors lie in two places of device memory that are more than 4 GiB apart, one place for
// each of the two batches (heads, rows). A stride is any distance, so the memory in between need not be the tensors'.
#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "far_places.hpp"
#include "forward_run.hpp"

namespace vkattn::test {
namespace {

// The same offsets serve both places.
class FarTensors {
  public:
    explicit FarTensors(Far far) : far_(far) {}

    void add(const Tensor& dense) {
        parts_.push_back({dense, size_});
        size_ += (dense.image.size() + unit_bytes - 1) / unit_bytes * unit_bytes;
    }
    uint64_t offset_bytes(size_t tensor) const { return parts_[tensor].offset; }

    // What lies in a place: its rows of all tensors, and poison.
    std::vector<std::byte> image(uint64_t place, uint32_t poison) const {
        std::vector<std::byte> all = filled(size_, poison);
        for (size_t t = 0; t + 1 < parts_.size(); t++)  // the last one is out
            each_row(t, place, [&](uint64_t at, uint64_t row) {
                const Tensor& dense = parts_[t].dense;
                std::memcpy(all.data() + at, dense.image.data() + row, dense.row_bytes());
            });
        return all;
    }
    // Moves out's rows from a place to `dense`, and leaves poison in their stead: then all must be as it was.
    void take_out(uint64_t place, std::vector<std::byte>& all, uint32_t poison,
                  std::vector<std::byte>& dense) const {
        each_row(parts_.size() - 1, place, [&](uint64_t at, uint64_t row) {
            const uint64_t bytes = parts_.back().dense.row_bytes();
            std::memcpy(dense.data() + row, all.data() + at, bytes);
            for (uint64_t i = 0; i < bytes; i++)
                all[at + i] = static_cast<std::byte>(poison >> ((at + i) % sizeof poison * 8));
        });
    }

  private:
    struct Part {
        Tensor dense;
        uint64_t offset;
    };
    // body(where the row lies in the place, where in the dense image)
    template <class Body>
    void each_row(size_t tensor, uint64_t place, Body body) const {
        const Tensor& t = parts_[tensor].dense;
        const uint64_t offset = parts_[tensor].offset;
        const uint64_t element = element_bytes(t.dtype);
        t.for_each_row([&](uint64_t b, uint64_t h, uint64_t s) {
            const uint64_t far = far_ == Far::batch ? b : far_ == Far::head ? h : s;
            if (far != place) return;
            const uint64_t near =
                t.at(far_ == Far::batch ? 0 : b, far_ == Far::head ? 0 : h, far_ == Far::row ? 0 : s);
            body(offset + near * element, t.at(b, h, s) * element);
        });
    }

    Far far_;
    std::vector<Part> parts_;
    uint64_t size_ = 0;
};

struct FarRun {
    FarRun(Device& on, const FarPlaces& in, const Case& c, const Case& dense, const Inputs& inputs)
        : device(on), two_places(in), out(tensor_of(dense, 3)), tensors(c.far) {
        for (const Tensor* const t : {&inputs.query, &inputs.key, &inputs.value, &std::as_const(out)})
            tensors.add(*t);
    }

    Ran<Outcome> run(const Plan& plan, const Case& c, uint32_t poison) const {
        std::string damage;
        std::vector<std::byte> images[2];
        for (const uint64_t place : {0u, 1u}) {
            images[place] = tensors.image(place, poison);
            device.runtime().upload(two_places.at(place), images[place]);
        }
        RunMemory memory(device, Place::end, poison);
        VkattnForwardArgs args = forward_args();
        VkDeviceAddress* const addresses[] = {&args.query, &args.key, &args.value, &args.out};
        for (size_t t = 0; t < 4; t++) *addresses[t] = two_places.at(0).address() + tensors.offset_bytes(t);
        if (c.lse) args.lse = memory.output("lse", out.batch * out.heads * out.seqlen * sizeof(float));
        memory.add_scratch(plan, args);
        device.runtime().submit([&](VkCommandBuffer commands) { plan.cmd_forward(commands, args); });
        std::vector<std::byte> result(out.image.size());
        for (const uint64_t place : {0u, 1u}) {
            std::vector<std::byte> now(images[place].size());
            device.runtime().download(two_places.at(place), now);
            tensors.take_out(place, now, poison, result);
            if (now != images[place]) damage = "memory beside out was written to";
        }
        if (damage.empty()) damage = memory.damage();
        return {{out.gather(result), memory.floats("lse"), {out.batch, out.heads, out.seqlen, out.dim}},
                damage};
    }

    Device& device;
    const FarPlaces& two_places;
    Tensor out;
    FarTensors tensors;
};

}  // namespace

Report run_far_case(Device& device, VkattnContext* context, const Case& given) {
    Report report;
    const FarPlaces found(device);
    report.skipped = found.obstacle();
    if (!report.skipped.empty()) return report;
    Case c = given;
    Plan plan;
    const auto make = [&](Case& strided, Plan& made) {
        set_far_strides(strided, found.distance());
        made = plan_of(context, strided);
    };
    if (!is_planned(report, c, plan, make, is_quirk)) return report;
    Case dense = c;
    for (int t = 0; t < 4; t++) strides_of(dense.problem, t) = problem().query_strides;  // contiguous
    const Inputs inputs = make_inputs(dense, Poison::alternating);
    const Expected expected = expect(dense, inputs);
    const FarRun far(device, found, c, dense, inputs);
    std::optional<Outcome> first;
    for (const uint32_t poison : {poison_word, 0xffffffffu}) {
        const std::string at = first ? "once more: " : "";
        const auto [outcome, damage] = far.run(plan, c, poison);
        report.add(at, damage, judge(outcome, expected));
        if (first && !first->same_bits(outcome)) report.failures.push_back(at + "other bits than before");
        first = outcome;
    }
    return report;
}

}  // namespace vkattn::test
