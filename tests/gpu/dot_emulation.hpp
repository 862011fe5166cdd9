// 16-bit dot products on devices that have none: in place of modules with the instruction of
// VK_VALVE_shader_mixed_float_dot_product, others that compute the same from converted numbers. interposer.cpp gives
// them to the driver, so that cases run through the library as on a device that has the extension. All but the
// instruction itself is then executed.
#pragma once

#include "vulkan/spirv.hpp"

namespace vkattn::test {

// The module with fma(a.y, b.y, fma(a.x, b.x, sum)) for each dot product, and without what declares these; the same
// module if it has none. Pairs of bfloat16 are words there, because their type need not exist on the device.
core::Spirv without_dot_products(const core::Spirv& module);

}  // namespace vkattn::test
