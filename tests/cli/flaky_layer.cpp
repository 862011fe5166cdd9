// This Vulkan layer stands for a driver that is wrong now and then: it leaves out one dispatch of as many as
// FLAKY_PERIOD says, so that a result is not written. tests/cli looks for it in what `vkattn report` and `vkattn
// conformance` say.
// The loader's interface of layers: LoaderLayerInterface.md of Vulkan-Loader, version 2.
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

PFN_vkGetInstanceProcAddr next_of_instance;
PFN_vkGetDeviceProcAddr next_of_device;
PFN_vkCmdDispatch next_dispatch;
PFN_vkCmdDispatchIndirect next_indirect;

bool leaves_out() {
    static std::atomic<int> dispatches = 0;
    const char* const period = std::getenv("FLAKY_PERIOD");
    return period != nullptr && ++dispatches % std::atoi(period) == 0;
}

VKAPI_ATTR void VKAPI_CALL dispatch(VkCommandBuffer c, uint32_t x, uint32_t y, uint32_t z) {
    if (!leaves_out()) next_dispatch(c, x, y, z);
}
VKAPI_ATTR void VKAPI_CALL dispatch_indirect(VkCommandBuffer c, VkBuffer buffer, VkDeviceSize at) {
    if (!leaves_out()) next_indirect(c, buffer, at);
}

// The next layer's link in what the loader hands to vkCreateInstance and vkCreateDevice.
template <class Link, class Info>
Link* link_of(const Info* info, VkStructureType type) {
    auto* at = static_cast<Link*>(const_cast<void*>(info->pNext));
    while (at != nullptr && (at->sType != type || at->function != VK_LAYER_LINK_INFO))
        at = static_cast<Link*>(const_cast<void*>(at->pNext));
    return at;
}

VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo* info,
                                               const VkAllocationCallbacks* a, VkInstance* instance) {
    auto* const link =
        link_of<VkLayerInstanceCreateInfo>(info, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    next_of_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    return reinterpret_cast<PFN_vkCreateInstance>(next_of_instance(nullptr, "vkCreateInstance"))(info, a,
                                                                                                 instance);
}

VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo* info,
                                             const VkAllocationCallbacks* a, VkDevice* device) {
    auto* const link = link_of<VkLayerDeviceCreateInfo>(info, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    next_of_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    const auto create = reinterpret_cast<PFN_vkCreateDevice>(
        link->u.pLayerInfo->pfnNextGetInstanceProcAddr(nullptr, "vkCreateDevice"));
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    const VkResult result = create(physical, info, a, device);
    if (result != VK_SUCCESS) return result;
    next_dispatch = reinterpret_cast<PFN_vkCmdDispatch>(next_of_device(*device, "vkCmdDispatch"));
    next_indirect =
        reinterpret_cast<PFN_vkCmdDispatchIndirect>(next_of_device(*device, "vkCmdDispatchIndirect"));
    return result;
}

PFN_vkVoidFunction own(std::string_view name);

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL of_device(VkDevice device, const char* name) {
    const PFN_vkVoidFunction mine = own(name);
    return mine != nullptr ? mine : next_of_device(device, name);
}
VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL of_instance(VkInstance instance, const char* name) {
    const PFN_vkVoidFunction mine = own(name);
    return mine != nullptr ? mine : next_of_instance(instance, name);
}

PFN_vkVoidFunction own(std::string_view name) {
    if (name == "vkGetInstanceProcAddr") return reinterpret_cast<PFN_vkVoidFunction>(of_instance);
    if (name == "vkGetDeviceProcAddr") return reinterpret_cast<PFN_vkVoidFunction>(of_device);
    if (name == "vkCreateInstance") return reinterpret_cast<PFN_vkVoidFunction>(create_instance);
    if (name == "vkCreateDevice") return reinterpret_cast<PFN_vkVoidFunction>(create_device);
    if (name == "vkCmdDispatch") return reinterpret_cast<PFN_vkVoidFunction>(dispatch);
    if (name == "vkCmdDispatchIndirect") return reinterpret_cast<PFN_vkVoidFunction>(dispatch_indirect);
    return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) VkResult vkNegotiateLoaderLayerInterfaceVersion(
    VkNegotiateLayerInterface* interface) {
    interface->loaderLayerInterfaceVersion = 2;
    interface->pfnGetInstanceProcAddr = of_instance;
    interface->pfnGetDeviceProcAddr = of_device;
    interface->pfnGetPhysicalDeviceProcAddr = nullptr;
    return VK_SUCCESS;
}
