#include "gpu/case_plan.hpp"

#include <cstddef>
#include <map>
#include <span>
#include <utility>

#include "vulkan/spirv.hpp"

namespace vkattn::test {
namespace {

struct Hash {
    uint64_t value = 0xcbf29ce484222325;

    void add(std::span<const std::byte> bytes) {
        for (const std::byte b : bytes) value = (value ^ static_cast<uint64_t>(b)) * 0x100000001b3;
    }
    template <class T>
    void add_all(const T& range) {
        add(std::as_bytes(std::span(range)));
    }
    void add_number(uint64_t number) { add(std::as_bytes(std::span(&number, 1))); }
};

}  // namespace

core::Result<core::Plan> core_plan_of(const core::DeviceCaps& caps, const Case& c, bool backward) {
    const auto problem = core::resolve(c.problem);
    if (!problem) return problem.failure();
    core::Options options;
    options.kernel = c.kernel;
    options.tuning = c.tuning;
    options.max_scratch_bytes = c.max_scratch_bytes;
    options.max_dispatch_flops = c.max_dispatch_flops;
    options.num_splits = c.num_splits;
    options.batch_invariant = c.batch_invariant;
    options.precision = c.precision;
    if (!backward) return core::make_plan(caps, *problem, options);
    VkattnBackward wanted = vkattn::backward();
    wanted.dlse = c.dlse ? 1 : 0;
    wanted.dbias = c.dbias && c.problem.mask == VKATTN_MASK_FLOAT ? 1 : 0;
    const auto resolved = core::resolve(*problem, wanted);
    if (!resolved) return resolved.failure();
    return core::make_plan(caps, *problem, *resolved, options);
}

// Plans share modules, and each is decompressed to look at it.
uint64_t hash_of_words(core::Module module, bool rolled) {
    static std::map<std::pair<core::Module, bool>, uint64_t> known;
    const auto [kept, is_new] = known.try_emplace({module, rolled}, 0);
    if (is_new) {
        Hash hash;
        hash.add_all(core::spirv_of(module, rolled));
        kept->second = hash.value;
    }
    return kept->second;
}

uint32_t hash_of_constants(const core::Pipeline& pipeline, core::PipelineConstants& constants) {
    const core::PipelineKey key = constants.key_of(pipeline);
    Hash hash;
    for (const auto& info : core::info_of(core::info_of(pipeline.module).kernel).constants) {
        const uint32_t value = core::constant_of(key, info.name);
        if (value == 0) continue;
        hash.add_all(std::string_view(info.name));
        hash.add_number(value);
    }
    return static_cast<uint32_t>(hash.value ^ hash.value >> 32);
}

uint64_t fingerprint(const core::Pipeline& pipeline, core::PipelineConstants& constants) {
    Hash hash;
    hash.add_number(hash_of_words(pipeline.module, pipeline.rolled));
    hash.add_all(constants.key_of(pipeline).constants);
    return hash.value;
}

uint64_t fingerprint(const core::Plan& plan, core::PipelineConstants& constants) {
    Hash hash;
    for (const core::Pipeline& p : plan.pipelines) {
        hash.add_number(fingerprint(p, constants));
        hash.add_all(p.push);
    }
    for (const core::Dispatch& d : plan.dispatches) {
        hash.add_number(d.pipeline);
        hash.add_all(d.groups);
        hash.add_all(d.cut.first);
        hash.add_number(d.cut.first_step);
        hash.add_number(d.cut.end_step);
    }
    hash.add_all(plan.arguments);
    return hash.value;
}

}  // namespace vkattn::test
