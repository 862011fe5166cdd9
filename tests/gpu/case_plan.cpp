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
    const auto resolved = core::resolve(*problem, backward_of(c));
    if (!resolved) return resolved.failure();
    return core::make_plan(caps, *problem, *resolved, options);
}

// Plans share modules, and each is decompressed to look at it.
uint64_t hash_of_words(const core::Module& module) {
    static std::map<core::Module, uint64_t> known;
    const auto [kept, is_new] = known.try_emplace(module, 0);
    if (is_new) {
        Hash hash;
        hash.add_all(core::spirv_of(module));
        kept->second = hash.value;
    }
    return kept->second;
}

uint32_t hash_of_constants(const core::Pipeline& pipeline, core::PipelineConstants& constants) {
    const core::PipelineKey key = constants.key_of(pipeline);
    Hash hash;
    for (const std::string_view name : core::info_of(pipeline.module.kernel).constants) {
        const uint32_t value = core::constant_of(key, name);
        if (value == 0) continue;
        hash.add_all(name);
        hash.add_number(value);
    }
    return static_cast<uint32_t>(hash.value ^ hash.value >> 32);
}

uint64_t fingerprint(const core::Pipeline& pipeline, core::PipelineConstants& constants) {
    Hash hash;
    hash.add_number(hash_of_words(pipeline.module));
    hash.add_all(constants.key_of(pipeline).constants);
    return hash.value;
}

core::Spirv specialized(const core::Pipeline& pipeline, core::PipelineConstants& constants) {
    // Numbers of the SPIR-V specification: sections 2.3 "Physical Layout", 3.20 "Decoration" and 3.49 "Instructions".
    constexpr uint32_t header_words = 5, decoration_spec_id = 1;
    constexpr uint32_t op_spec_constant_true = 48, op_spec_constant_false = 49, op_spec_constant = 50,
                       op_decorate = 71;
    std::map<uint32_t, uint32_t> value_of_number, value_of_id;
    for (const VkSpecializationMapEntry& e : constants.entries_of(pipeline.module))
        value_of_number[e.constantID] = pipeline.constants[e.offset / sizeof(uint32_t)];
    core::Spirv words = core::spirv_of(pipeline.module);
    for (size_t at = header_words; at < words.size(); at += words[at] >> 16) {
        const uint32_t opcode = words[at] & 0xffff;
        if (opcode == op_decorate && words[at + 2] == decoration_spec_id) {
            const auto value = value_of_number.find(words[at + 3]);
            if (value != value_of_number.end()) value_of_id[words[at + 1]] = value->second;
        }
        if (opcode < op_spec_constant_true || opcode > op_spec_constant) continue;
        const auto value = value_of_id.find(words[at + 2]);
        if (value == value_of_id.end()) continue;
        if (opcode == op_spec_constant)
            words[at + 3] = value->second;
        else
            words[at] += (value->second != 0 ? op_spec_constant_true : op_spec_constant_false) - opcode;
    }
    return words;
}

uint64_t hash_of_work(const core::Plan& plan) {
    Hash hash;
    const auto add_bytes = [&](std::span<const std::byte> bytes) {
        for (size_t i = 0; i < bytes.size(); i++)
            if (bytes[i] != std::byte{0}) hash.add_number(i << 8 | static_cast<uint64_t>(bytes[i]));
    };
    for (const core::Pipeline& p : plan.pipelines) {
        hash.add_number(core::constant_of(p, "subgroup_size"));
        add_bytes(p.push);
    }
    for (const core::Dispatch& d : plan.dispatches) {
        hash.add_number(d.pipeline);
        hash.add_all(d.groups);
        hash.add_all(d.cut.first);
        hash.add_number(d.cut.first_step);
        hash.add_number(d.cut.end_step);
    }
    add_bytes(plan.arguments);
    return hash.value;
}

}  // namespace vkattn::test
