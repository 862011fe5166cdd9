#include "plan_faults.hpp"

#include <cstring>

#include <fmt/format.h>

#include "plan_arrays.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {

Faults::Faults(const Sound& s) : s_(s) {
    if (s.combine) {
        auto plan = make_plan(s.caps, *s.combine);
        if (!plan) throw std::runtime_error(plan.failure().message);
        plan_ = std::move(*plan);
    } else {
        plan_ = s.backward ? planned(s.caps, s.problem, *s.backward, s.options)
                           : planned(s.caps, s.problem, s.options);
    }
}

std::string Faults::flaw_of_plan(const Plan& plan) const {
    if (s_.combine) return flaw_of(s_.caps, *s_.combine, plan);
    return s_.backward ? flaw_of(s_.caps, s_.problem, *s_.backward, plan, s_.options)
                       : flaw_of(s_.caps, s_.problem, plan, s_.options);
}

namespace {

template <class Bytes>
void flip(Bytes& bytes, size_t word, uint32_t bits) {
    uint32_t value;
    std::memcpy(&value, bytes.data() + 4 * word, 4);
    value ^= bits;
    std::memcpy(bytes.data() + 4 * word, &value, 4);
}

void plant_in_constants(Faults& f, size_t at) {
    const core::Pipeline& pipeline = f.plan().pipelines[at];
    const std::string of = fmt::format("{} ", name_of(pipeline));
    for (size_t i = 0; i < pipeline.constants.size(); i++)
        for (const uint32_t change : {1u, 2u, 1u << 16})
            f.plant(fmt::format("{}constant {} ^ {}", of, i, change),
                    [&](Plan& p) { p.pipelines[at].constants[i] ^= change; });
    for (int32_t m = 0; m < static_cast<int32_t>(core::Module::count); m++)
        if (const auto module = static_cast<core::Module>(m); module != pipeline.module)
            f.plant(fmt::format("{}as {}", of, core::name_of(module)),
                    [&](Plan& p) { p.pipelines[at].module = module; });
    f.plant(of + "rolled", [&](Plan& p) { p.pipelines[at].rolled = !p.pipelines[at].rolled; });
    f.plant(of + "of_tuning_row",
            [&](Plan& p) { p.pipelines[at].of_tuning_row = !p.pipelines[at].of_tuning_row; });
}

void plant_in_patches(Faults& f, size_t at) {
    const core::Pipeline& pipeline = f.plan().pipelines[at];
    const std::string of = fmt::format("{} ", name_of(pipeline));
    const auto plant = [&](const char* what, const auto& change) {
        f.plant(of + what, [&](Plan& p) { change(p.pipelines[at].patches); });
    };
    for (size_t i = 0; i < pipeline.patches.size(); i++) {
        plant("patch elsewhere", [&](auto& all) { all[i].at += 8; });
        plant("patch added to", [&](auto& all) { all[i].add += 16; });
        plant("patch of another region", [&](auto& all) { all[i].region = core::Region::dbias; });
        plant("no patch", [&](auto& all) { all.erase(all.begin() + ptrdiff_t(i)); });
        plant("patch twice", [&](auto& all) { all.push_back(all[i]); });
    }
}

void plant_in_pipeline(Faults& f, size_t at) {
    const core::Pipeline& pipeline = f.plan().pipelines[at];
    const std::string of = fmt::format("{} ", name_of(pipeline));
    // No shader reads this: the gradient of the mask is not cut.
    const core::FieldInfo* num_steps = kind_of(pipeline) == Kind::dbias
                                           ? find_field(core::info_of(pipeline.module).kernel, "num_steps")
                                           : nullptr;
    // The flipped bit is a high one because the last bits of a float are rounding.
    for (size_t word = 0; word < pipeline.push.size() / 4; word++)
        if (num_steps == nullptr || 4 * word != num_steps->offset_bytes)
            f.plant(fmt::format("{}push word {}", of, word),
                    [&](Plan& p) { flip(p.pipelines[at].push, word, 1u << 20); });
    for (uint32_t r = 0; r < static_cast<uint32_t>(core::Region::count); r++) {
        const uint32_t region = core::bit(static_cast<core::Region>(r));
        // These passes may load what they do not use.
        const bool may = (kind_of(pipeline) == Kind::classes || kind_of(pipeline) == Kind::delta) &&
                         (region & all_optional_arrays()) != 0;
        if (!may) f.plant(of + "reads", [&](Plan& p) { p.pipelines[at].reads ^= region; });
        f.plant(of + "writes", [&](Plan& p) { p.pipelines[at].writes ^= region; });
    }
    if (f.plan().kernel != "materialized")  // which may have pipelines to spare
        f.plant(of + "twice", [&](Plan& p) { p.pipelines.push_back(pipeline); });
    f.plant(of + "of another kind", [&](Plan& p) { std::swap(p.pipelines[at], p.pipelines.emplace_back()); });
}

void plant_in_dispatch(Faults& f, size_t at) {
    const core::Dispatch& d = f.plan().dispatches[at];
    const std::string of = fmt::format("dispatch {} ", at);
    const auto plant = [&](const std::string& what, const auto& change) {
        f.plant(of + what, [&](Plan& p) { change(p.dispatches[at]); });
    };
    for (uint32_t i = 0; i < f.plan().pipelines.size() + 2; i++)
        if (i != d.pipeline) plant("another pipeline", [&](core::Dispatch& x) { x.pipeline = i; });
    for (size_t i = 0; i < 3; i++) {
        plant("more groups", [&](core::Dispatch& x) { x.groups[i]++; });
        plant("fewer groups", [&](core::Dispatch& x) { x.groups[i]--; });
        plant("begins elsewhere", [&](core::Dispatch& x) { x.cut.first[i]++; });
        plant("begins before", [&](core::Dispatch& x) { x.cut.first[i]--; });
    }
    plant("first step", [&](core::Dispatch& x) { x.cut.first_step++; });
    plant("end step", [&](core::Dispatch& x) { x.cut.end_step++; });
    plant("barrier", [&](core::Dispatch& x) { x.barrier_before = !x.barrier_before; });
    // The least that a merge costs is not known, and the baseline does not tell what it costs.
    if (kind_of(f.plan(), d) != Kind::combine && f.plan().kernel != "materialized")
        plant("flops", [&](core::Dispatch& x) { x.flops = 1; });
    f.plant(of + "is missing", [&](Plan& p) { p.dispatches.erase(p.dispatches.begin() + ptrdiff_t(at)); });
    f.plant(of + "twice", [&](Plan& p) { p.dispatches.insert(p.dispatches.begin() + ptrdiff_t(at), d); });
}

}  // namespace

void plant_in_work(Faults& f) {
    for (size_t i = 0; i < f.plan().pipelines.size(); i++) {
        std::vector<size_t> with;
        for (size_t at = 0; at < f.plan().dispatches.size(); at++)
            if (f.plan().dispatches[at].pipeline == i) with.push_back(at);
        if (with.empty()) continue;
        plant_in_constants(f, i);
        plant_in_patches(f, i);
        plant_in_pipeline(f, i);
        plant_in_dispatch(f, with.front());
        if (with.size() > 1) plant_in_dispatch(f, with.back());
    }
}

void plant_in_plan(Faults& f) {
    for (const auto at :
         {&core::Tiles::tile_q, &core::Tiles::tile_kv, &core::Tiles::threads, &core::Tiles::shared_bytes})
        f.plant("tiles", [&](Plan& p) { p.tiles.*at += 16; });
    for (const char* name : {"rows", "tiles", "matrix", "materialized"})
        if (f.plan().kernel != name) f.plant(name, [&](Plan& p) { p.kernel = name; });
    f.plant("num_splits", [](Plan& p) { p.num_splits++; });
    for (const auto dtype : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16})
        if (dtype != f.plan().operands) f.plant("operands", [&](Plan& p) { p.operands = dtype; });
    for (size_t word = 0; word < f.plan().arguments.size() / 4; word++)
        f.plant(fmt::format("argument {}", word), [&](Plan& p) { flip(p.arguments, word, 1); });
    for (size_t i = 0; i < f.plan().argument_patches.size(); i++)
        f.plant("argument patch", [&](Plan& p) { p.argument_patches[i].at ^= 8; });
    for (size_t i = 0; i < f.plan().scratch.size(); i++) {
        f.plant("scratch offset", [&](Plan& p) { p.scratch[i].offset_bytes += core::scratch_alignment; });
        f.plant("scratch size", [&](Plan& p) { p.scratch[i].size_bytes -= 4; });
    }
    f.plant("scratch_bytes", [](Plan& p) { p.scratch_bytes += core::scratch_alignment; });
    if (!f.plan().refused.empty()) f.plant("refused", [](Plan& p) { p.refused.pop_back(); });
    f.plant("another pipeline", [](Plan& p) { p.pipelines.emplace_back(); });
    for (size_t i = 0; i < f.plan().caller_arrays.size(); i++) {
        const auto plant = [&](const char* what, const auto& change) {
            f.plant(what, [&](Plan& p) { change(p.caller_arrays); });
        };
        plant("array not checked", [&](auto& all) { all.erase(all.begin() + ptrdiff_t(i)); });
        plant("array held to less", [&](auto& all) { all[i].alignment_bytes /= 2; });
        plant("array may be null", [&](auto& all) { all[i].may_be_null = !all[i].may_be_null; });
    }
}

void plant_in_tuning(Faults& f, const std::set<std::string>& but) {
    const std::string text = f.plan().tuning;
    for (const auto& [name, value] : values_in(text)) {
        if (but.count(name) != 0) continue;
        const std::string key = name + "=";
        const size_t at = ("," + text).find("," + key) + key.size(),
                     end = std::min(text.find(',', at), text.size());
        f.plant("tuning " + name, [&, number = value](Plan& p) {
            p.tuning = text.substr(0, at) + std::to_string(number + 1) + text.substr(end);
        });
        f.plant("tuning without " + name, [&](Plan& p) {
            p.tuning = text.substr(0, at - key.size()) + text.substr(std::min(end + 1, text.size()));
        });
    }
}

}  // namespace vkattn::test
