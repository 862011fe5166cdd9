// Which specialization constants a module reads. Shaders declare more than that, because they share lib/constants.glsl.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <vulkan/vulkan_core.h>

#include "plan/plan.hpp"
#include "spirv.hpp"

namespace vkattn::core {

using Specialization = std::array<uint32_t, SPEC_COUNT>;

// Bits 1 << SPEC_* of the constants that the module's code depends on.
uint32_t constants_read(const Spirv& module);

// Tells of dispatches what their pipelines are built from, and remembers what modules read. Safe to use from many
// threads.
class PipelineConstants {
  public:
    // The dispatch's constants, with 0 for those that its module does not read, so that they do not split pipelines.
    // Two are kept in any case: SPEC_ROLLED chooses the module, and the subgroup size of a matrix kernel is a
    // property of its pipeline.
    Specialization of(const Dispatch& dispatch);
    // Lists for vkCreateComputePipelines the constants that the module reads. The others keep the module's
    // defaults: code that nobody uses may divide by them.
    std::vector<VkSpecializationMapEntry> entries_of(Variant variant, bool rolled);

  private:
    uint32_t read_by(Variant variant, bool rolled);

    std::mutex mutex_;  // guards read_
    std::map<std::pair<Variant, bool>, uint32_t> read_;
};

}  // namespace vkattn::core
