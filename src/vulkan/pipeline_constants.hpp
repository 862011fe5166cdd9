// Which specialization constants a module reads. Shaders declare more than that, because they share lists of them
// (shaders/interface).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include <vulkan/vulkan_core.h>

#include "plan/plan.hpp"
#include "spirv.hpp"

namespace vkattn::core {

// Bits 1 << id of the constants that the module's code depends on.
uint64_t constants_read(const Spirv& module);

// Everything that a VkPipeline is built from.
struct PipelineKey {
    Module module;
    ConstantValues constants{};
    // NOLINTNEXTLINE(modernize-use-nullptr): as that of Module
    auto operator<=>(const PipelineKey&) const = default;
};

uint32_t constant_of(const PipelineKey& key, std::string_view name);

// Tells of pipelines what they are built from, and remembers what modules read. Safe to use from many threads.
class PipelineConstants {
  public:
    // The pipeline's constants, with 0 for those that its module does not read, so that they do not split pipelines.
    // The subgroup size of a matrix kernel is kept in any case: it is a property of the VkPipeline.
    PipelineKey key_of(const Pipeline& pipeline);
    // Lists for vkCreateComputePipelines the constants that the module reads. The others keep the module's
    // defaults: code that nobody uses may divide by them.
    std::vector<VkSpecializationMapEntry> entries_of(const Module& module);
    // The module's words. Those that were decompressed to see what the module reads are given out once, because
    // a pipeline is usually built from them next.
    Spirv take_words(const Module& module);
    // Keeps the words of a variant.
    void keep(const Module& variant, Spirv words);

  private:
    uint64_t read_by(const Module& module);
    Spirv words_of(const Module& module);

    std::mutex mutex_;  // guards what follows
    std::map<Module, uint64_t> read_;
    std::map<Module, Spirv> words_;
    std::map<Module, Spirv> variants_;
};

}  // namespace vkattn::core
