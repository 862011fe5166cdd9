// Which specialization constants a module reads. Shaders declare more than that, because they share lib/constants.glsl.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "plan/plan.hpp"
#include "spirv.hpp"

namespace vkattn::core {

using Specialization = std::array<uint32_t, SPEC_COUNT>;

// Bits 1 << SPEC_* of the constants that the module's code depends on.
uint32_t constants_read(const Spirv& module);

// The constants of a dispatch as its pipeline is built from them: those that its module does not read are 0, so that they
// do not split pipelines. Two constants are kept in any case: SPEC_ROLLED chooses the module, and the subgroup size of a
// matrix kernel is a property of its pipeline. Remembers what modules read, so one object is for one thread at a time.
class PipelineConstants {
  public:
    Specialization of(const Dispatch& dispatch);

  private:
    std::map<std::pair<Variant, bool>, uint32_t> read_;
};

}  // namespace vkattn::core
