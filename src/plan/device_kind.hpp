// Kinds of devices that tuning rows are for.
#pragma once

#include "caps.hpp"

namespace vkattn::core {

// many_registers: 256 an invocation, as NVIDIA's and AMD's GPUs have. adreno: 192 an invocation, and 32 KiB of shared
// memory a core, under Mesa's Turnip; adreno_few: 128 and fewer. apple: 128 an invocation, under Mesa's Honeykrisp.
// nvidia_driver: NVIDIA's own driver, as against Mesa's NVK.
enum class DeviceKind { any, cpu, many_registers, amd, nvidia, nvidia_driver, adreno, adreno_few, apple };

// The most specific kind of a device.
DeviceKind kind_of(const DeviceCaps& caps);

// True if a row for `row` is for such devices: the kind itself, or a more general one.
bool is_for(DeviceKind row, DeviceKind device);

}  // namespace vkattn::core
