// The device under test: a Runtime, and the few Vulkan calls that the tests make themselves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "vkattn/runtime.hpp"
#include "vulkan/functions.hpp"

namespace vkattn::test {

// Beside those that the library calls.
#define VKATTN_TEST_FUNCTIONS(X)                   \
    VKATTN_DEVICE_FUNCTIONS(X)                     \
    X(vkAllocateCommandBuffers)                    \
    X(vkAllocateMemory)                            \
    X(vkBeginCommandBuffer)                        \
    X(vkBindBufferMemory)                          \
    X(vkCmdCopyBuffer)                             \
    X(vkCreateBuffer)                              \
    X(vkCreateCommandPool)                         \
    X(vkDestroyBuffer)                             \
    X(vkDestroyCommandPool)                        \
    X(vkEndCommandBuffer)                          \
    X(vkFreeMemory)                                \
    X(vkGetBufferMemoryRequirements)               \
    X(vkGetPhysicalDeviceExternalBufferProperties) \
    X(vkGetPhysicalDeviceProperties2)              \
    X(vkQueueSubmit)                               \
    X(vkQueueWaitIdle)

struct Vk {
#define X(name) PFN_##name name = nullptr;
    VKATTN_TEST_FUNCTIONS(X)
#undef X
    PFN_vkGetMemoryHostPointerPropertiesEXT vkGetMemoryHostPointerPropertiesEXT =
        nullptr;  // null: no such extension
};

class Device {
  public:
    // Those of a test process, made by the first call, with core and synchronization validation; they are one and the
    // same physical device. Most tests use the first; the second lets cases run on two threads. Throws RuntimeError
    // where there is no usable device. Defined by fixture.cpp.
    static Device& get(int index = 0);
    // Without validation and guard pages, for a user's machine.
    explicit Device(const RuntimeOptions& options);
    // On an instance of at most this Vulkan version.
    explicit Device(bool validation, uint32_t api_version = RuntimeOptions{}.api_version);

    Runtime& runtime() { return *runtime_; }
    const Vk& vk() const { return vk_; }
    VkDevice handle() const { return runtime_->handles().device; }
    const DeviceInfo& info() const { return runtime_->device(); }
    bool validated() const { return validated_; }
    // The runtime's context may use one for this type.
    bool has_matrix_unit(VkattnDtype dtype) const;
    // A device address is a host pointer, so tensors can stand against pages that nobody may touch.
    bool has_guard_pages() const { return guard_pages_; }
    uint64_t page_bytes() const { return page_bytes_; }
    // Messages of the validation layer since the last call, without those about imports that the driver can do but
    // does not report (SwiftShader).
    std::vector<std::string> take_messages();

  private:
    void load();
    void read_host_memory_limits();

    std::unique_ptr<Runtime> runtime_;
    Vk vk_;
    bool validated_ = false;
    bool guard_pages_ = false;
    bool unreported_import_ = false;
    uint64_t page_bytes_ = 4096;
    size_t messages_seen_ = 0;
};

// A command pool and the command buffers from it, for tests that do not record through Runtime::submit. One thread at
// a time; submit() with no Runtime call in flight.
class Recorder {
  public:
    explicit Recorder(Device& device);
    Recorder(const Recorder&) = delete;
    ~Recorder();
    VkCommandBuffer begin();  // stays valid as long as the recorder
    void end();               // the one begun last
    // One vkQueueSubmit, nothing between the command buffers; waits, and makes the results visible to the host.
    static void submit(Device& device, std::vector<VkCommandBuffer> commands);
    const std::vector<VkCommandBuffer>& recorded() const { return recorded_; }

  private:
    Device& device_;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    std::vector<VkCommandBuffer> recorded_;
};

// Everything written so far becomes visible to everything later, the host included.
void full_barrier(Device& device, VkCommandBuffer commands);

// Returns what a context of a runtime's device needs, with no feature but buffer device addresses.
VkattnContextInfo context_info_of(const RuntimeHandles& handles);

// Throws a RuntimeError that names the call, unless it succeeded.
void require(VkResult result, const char* what);

}  // namespace vkattn::test
