// Lists where devices are known to keep the elements of matrices. On real devices vkattn_cmd_probe finds that out; the
// gate's devices execute nothing, so the gate says it for them.
#pragma once

#include <string>
#include <vector>

#include "plan/caps.hpp"

namespace vkattn::test {

struct KnownDevice {
    std::string layout;  // a word for the names of rows; empty where the planner knows no layout
    core::DeviceCaps caps;
};

// The device as it is before a probe, and, if its layout is known, as it is after one. Throws std::runtime_error if the
// library does not accept a layout that is known here.
std::vector<KnownDevice> with_known_layouts(const core::DeviceCaps& caps);

}  // namespace vkattn::test
