#include "devices.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include <fmt/format.h>

#include "guarded.hpp"
#include "vkattn/vkattn.hpp"

namespace vkattn::runtime {
namespace {

constexpr const char* validation_layer = "VK_LAYER_KHRONOS_validation";

uint32_t version_of(const Loader& loader) {
    const PFN_vkVoidFunction ask = loader.get_instance_proc_addr()(nullptr, "vkEnumerateInstanceVersion");
    uint32_t version = VK_API_VERSION_1_0;
    if (ask == nullptr) return version;
    require(reinterpret_cast<PFN_vkEnumerateInstanceVersion>(ask)(&version),
            "vk::raii::Context::enumerateInstanceVersion");
    return version;
}

VkResult create_instance(const Loader& loader, uint32_t version, bool validation, bool debug_utils,
                         VkInstance& made) {
    const VkApplicationInfo application{
        VK_STRUCTURE_TYPE_APPLICATION_INFO, nullptr, "vkattn", 0, "vkattn", 0, version};
    const VkValidationFeatureEnableEXT sync = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
    const VkValidationFeaturesEXT checks{
        VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT, nullptr, 1, &sync, 0, nullptr};
    std::vector<const char*> extensions;
    if (debug_utils) extensions.push_back(VK_EXT_DEBUG_UTILS_EXTENSION_NAME);
    VkInstanceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
    info.pApplicationInfo = &application;
    if (validation) {
        extensions.push_back(VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME);
        info.pNext = &checks;
        info.enabledLayerCount = 1;
        info.ppEnabledLayerNames = &validation_layer;
    }
    info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
    info.ppEnabledExtensionNames = extensions.data();
    const PFN_vkVoidFunction create = loader.get_instance_proc_addr()(nullptr, "vkCreateInstance");
    return reinterpret_cast<PFN_vkCreateInstance>(create)(&info, nullptr, &made);
}

// Sets debug_utils to what the instance has. VK_EXT_debug_utils is taken wherever there is one: Khronos' loader brings
// it, nobody can see whether a layer that captures listens, and a driver that has no use for labels ignores them.
VkInstance make_instance(const Loader& loader, uint32_t version, bool validation, bool& debug_utils) {
    VkInstance made = VK_NULL_HANDLE;
    VkResult result = create_instance(loader, version, validation, true, made);
    debug_utils = validation || result != VK_ERROR_EXTENSION_NOT_PRESENT;
    if (!debug_utils) result = create_instance(loader, version, validation, false, made);
    if (result == VK_ERROR_LAYER_NOT_PRESENT)
        fail(VKATTN_UNSUPPORTED,
             "validation was asked for, but the layer VK_LAYER_KHRONOS_validation is not installed");
    if (result == VK_ERROR_INCOMPATIBLE_DRIVER || result == VK_ERROR_INITIALIZATION_FAILED)
        fail(VKATTN_UNSUPPORTED, fmt::format("no Vulkan driver: vkCreateInstance: {}", name_of(result)), "",
             result);
    require(result, "vkCreateInstance");
    return made;
}

VkDevice make_device(const Instance& instance, VkPhysicalDevice physical, const VkDeviceCreateInfo& info) {
    VkDevice made = VK_NULL_HANDLE;
    require(instance.vk.vkCreateDevice(physical, &info, nullptr, &made), "vkCreateDevice");
    return made;
}

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

// Preference among devices when none is named; the lowest wins.
int rank(const VkattnDeviceInfo& d) {
    const std::string order[] = {"discrete", "integrated", "virtual", "cpu"};
    return static_cast<int>(std::find(std::begin(order), std::end(order), d.type) - std::begin(order));
}

const char* type_name(VkPhysicalDeviceType type) {
    switch (type) {
        case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
            return "discrete";
        case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
            return "integrated";
        case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
            return "virtual";
        case VK_PHYSICAL_DEVICE_TYPE_CPU:
            return "cpu";
        default:
            return "other";
    }
}

bool is_usable(const VkattnDeviceInfo& d) {
    return d.refusal[0] == 0;
}

template <size_t Size>
void set_text(char (&to)[Size], std::string_view text) {
    core::copy_text(to, Size, text);
}

// Asks vkattn itself whether the device can be used. That there is no memory to answer with says nothing of the device.
std::string refusal(const Instance& instance, VkPhysicalDevice device) {
    VkattnRequirements* requirements = nullptr;
    VkattnError error;
    const VkattnStatus status = vkattn_requirements_create(instance.loader.get_instance_proc_addr(),
                                                           instance.handle, device, &requirements, &error);
    vkattn_requirements_destroy(requirements);
    if (status != VKATTN_OK && status != VKATTN_UNSUPPORTED) throw Error(error);
    return error.message;
}

}  // namespace

void fail(VkattnStatus status, const std::string& message, const char* field, VkResult result) {
    VkattnError error;
    core::report(&error, status, field, message, result);
    throw Error(error);
}

void check(VkResult result, const std::string& doing) {
    if (result == VK_SUCCESS) return;
    if (result == VK_ERROR_DEVICE_LOST) throw VulkanError(result, doing.c_str());
    fail(result == VK_ERROR_OUT_OF_HOST_MEMORY ? VKATTN_OUT_OF_HOST_MEMORY : VKATTN_DEVICE_ERROR,
         fmt::format("{} failed: {}", doing, name_of(result)), "", result);
}

Instance::Instance(bool validation, uint32_t api_version)
    : version(std::min(version_of(loader), api_version)),
      handle(make_instance(loader, version, validation, debug_utils)),
      vk(loader.get_instance_proc_addr(), handle) {}

std::vector<VkPhysicalDevice> Instance::devices() const {
    return enumerate(VkPhysicalDevice{}, "vk::raii::Instance::enumeratePhysicalDevices",
                     [&](uint32_t* count, VkPhysicalDevice* all) {
                         return vk.vkEnumeratePhysicalDevices(handle, count, all);
                     });
}

VkPhysicalDeviceProperties Instance::properties(VkPhysicalDevice device) const {
    VkPhysicalDeviceProperties told{};
    vk.vkGetPhysicalDeviceProperties(device, &told);
    return told;
}

Device::Device(const Instance& instance, VkPhysicalDevice physical, const VkDeviceCreateInfo& info)
    : handle(make_device(instance, physical, info)), vk(instance.vk.vkGetDeviceProcAddr, handle) {}

void Device::barrier(VkCommandBuffer commands, Scope before, Scope after) const {
    const VkMemoryBarrier memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, before.access, after.access};
    vk.vkCmdPipelineBarrier(commands, before.stages, after.stages, 0, 1, &memory, 0, nullptr, 0, nullptr);
}

VkattnDeviceInfo describe(const Instance& instance, VkPhysicalDevice device, uint32_t index) {
    VkattnDeviceInfo d;
    vkattn_device_info_init(&d);
    const VkPhysicalDeviceProperties basic = instance.properties(device);
    d.index = index;
    set_text(d.name, basic.deviceName);
    set_text(d.type, type_name(basic.deviceType));
    d.vendor_id = basic.vendorID;
    d.api_version = basic.apiVersion;
    d.shared_memory_bytes = basic.limits.maxComputeSharedMemorySize;
    d.max_invocations = basic.limits.maxComputeWorkGroupInvocations;
    if (basic.apiVersion < VK_API_VERSION_1_2 || instance.version < VK_API_VERSION_1_2) {
        set_text(d.refusal, "Vulkan 1.2 is needed");
        return d;
    }
    VkPhysicalDeviceSubgroupProperties subgroup{};
    subgroup.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES;
    VkPhysicalDeviceIDProperties id{};
    id.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES;
    id.pNext = &subgroup;
    VkPhysicalDeviceDriverProperties driver{};
    driver.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES;
    driver.pNext = &id;
    VkPhysicalDeviceProperties2 all{};
    all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    all.pNext = &driver;
    instance.vk.vkGetPhysicalDeviceProperties2(device, &all);
    set_text(d.driver, fmt::format("{} {}", driver.driverName, driver.driverInfo));
    std::string uuid;
    for (uint8_t byte : id.deviceUUID) uuid += fmt::format("{:02x}", byte);
    set_text(d.uuid, uuid);
    d.subgroup_size = subgroup.subgroupSize;
    set_text(d.refusal, refusal(instance, device));
    return d;
}

uint32_t pick_device(const std::vector<VkattnDeviceInfo>& devices, const std::string& given) {
    if (devices.empty()) fail(VKATTN_UNSUPPORTED, "there is no Vulkan device on this machine");
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody here sets it
    const char* environment = std::getenv("VKATTN_DEVICE");
    const std::string wanted = lower(!given.empty() ? given : environment != nullptr ? environment : "");
    // A number is an index, or nothing: "2" is not to find an H200.
    const bool is_index = !wanted.empty() && wanted.size() < 32 &&
                          std::ranges::all_of(wanted, [](char c) { return c >= '0' && c <= '9'; });
    const VkattnDeviceInfo* best = nullptr;
    for (const VkattnDeviceInfo& d : devices) {
        std::string uuid = wanted;
        std::erase(uuid, '-');
        if (wanted.empty()) {
            if (is_usable(d) && (best == nullptr || rank(d) < rank(*best))) best = &d;
        } else if (wanted == std::to_string(d.index) || uuid == d.uuid) {
            return d.index;
        } else if (best == nullptr && !is_index && lower(d.name).find(wanted) != std::string::npos) {
            best = &d;
        }
    }
    if (best != nullptr) return best->index;
    std::string names;
    for (const VkattnDeviceInfo& d : devices)
        names += fmt::format("{}{} {}{}", names.empty() ? "" : "; ", d.index, d.name,
                             is_usable(d) ? "" : fmt::format(" ({})", d.refusal));
    if (wanted.empty()) fail(VKATTN_UNSUPPORTED, "no Vulkan device here can run vkattn: " + names);
    fail(VKATTN_INVALID_ARGUMENT, fmt::format("no device '{}'; there are: {}", wanted, names));
}

std::vector<VkattnDeviceInfo> list_devices() {
    const Instance instance(false, default_api_version);
    std::vector<VkattnDeviceInfo> devices;
    for (VkPhysicalDevice device : instance.devices())
        devices.push_back(describe(instance, device, static_cast<uint32_t>(devices.size())));
    return devices;
}

}  // namespace vkattn::runtime
