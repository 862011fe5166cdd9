// Vulkan for the runtime or a context, in which a chosen call fails. Everything else is done by the real driver, but
// what is slow to make is made once: instance, device and pipelines are shared by all that ask for them one after the
// other.
#pragma once

#include <map>
#include <set>
#include <string>
#include <typeindex>
#include <vector>

#include <vulkan/vulkan_core.h>

namespace vkattn::test {

// Runtimes that are made between install() and remove() go through this object, and contexts that are given between().
// One of them is installed at a time, and one thread uses it.
class FaultyVulkan {
  public:
    FaultyVulkan() = default;
    FaultyVulkan(const FaultyVulkan&) = delete;
    FaultyVulkan& operator=(const FaultyVulkan&) = delete;
    ~FaultyVulkan();
    void install();
    void remove();
    static PFN_vkGetInstanceProcAddr between(PFN_vkGetInstanceProcAddr real);

    // Makes pipelines, commands and the addresses of buffers up, so that nothing is executed. No device is lost then.
    bool pretend = false;
    static constexpr VkDeviceAddress pretended_address = uint64_t{20} << 50;

    // Forgets what it has noted. Of the calls that can fail, `times` return the error, from number fail_at on; the
    // first one is number 1.
    void start(int fail_at = 0, VkResult error = VK_SUCCESS, int times = 1);

    // The functions that can fail, of all that are known here.
    static std::vector<std::string> fallible_functions();

    std::vector<std::string> calls;  // so far, of those that can fail
    std::string failed;              // the first function that did, or ""
    bool lost = false;               // and the device with it: until there is a new one, submissions say so
    // What was destroyed while the device used it, or twice, and what is there yet: one line each.
    std::vector<std::string> wrong;
    std::vector<std::string> alive() const;
    VkResult error() const { return error_; }
    size_t cache_bytes = 0;                             // that the last pipeline cache began with
    VkDebugUtilsMessengerCreateInfoEXT messenger = {};  // the last one

    struct Hooks;  // the functions that Vulkan's are replaced by

  private:
    VkResult next_result(const char* function);
    void created(std::type_index type, const void* handle);
    void destroyed(std::type_index type, const void* handle);
    void wait();

    int fail_at_ = 0, times_ = 0;
    VkResult error_ = VK_SUCCESS;
    std::multiset<std::pair<std::type_index, const void*>> alive_;
    std::set<VkFence> pending_;  // of submissions that may not have ended
    VkInstance instance_ = VK_NULL_HANDLE;
    VkDevice device_ = VK_NULL_HANDLE;
    std::map<VkShaderModule, std::string> codes_;
    std::map<std::string, VkPipeline> pipelines_;
    uintptr_t pretended_pipelines_ = 0;
};

}  // namespace vkattn::test
