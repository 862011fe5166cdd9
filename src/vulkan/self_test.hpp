// Records the self-test of a context's kernels and reads its results. The C ABI (api.cpp) calls it, once after another,
// while nobody else uses the context. device_tests/self_test.hpp says what is tested.
#pragma once

#include <span>

#include "context.hpp"
#include "vkattn/vkattn.h"

namespace vkattn::core {

// Memory of a caller's: `bytes` of it lie `offset` behind the beginning of the buffer, at `address`.
struct DeviceMemory {
    VkBuffer buffer;
    VkDeviceSize offset;
    VkDeviceAddress address;
};

uint64_t self_test_size(const DeviceCaps& caps);
// Builds the pipelines of one of pending_tests().
Result<bool> build_self_test(VkattnContext& context, uint32_t index);
// Keeps in the context what was recorded.
Result<bool> record_self_test(VkCommandBuffer commands, VkattnContext& context, const DeviceMemory& memory);
// `results`: the whole memory. Adds verdicts to the context's caps.
Result<bool> note_self_test(VkattnContext& context, std::span<const std::byte> results);
// Says which kernels have failed, but those whose failure is among the verdicts that were known before.
void tell_failures(const VkattnContext& context, const std::vector<KernelVerdict>& known);

}  // namespace vkattn::core
