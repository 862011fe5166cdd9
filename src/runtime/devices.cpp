#include "devices.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include <fmt/format.h>

namespace vkattn::runtime {
namespace {

constexpr const char* validation_layer = "VK_LAYER_KHRONOS_validation";

// For people who meet Vulkan for the first time.
constexpr const char* how_to_install =
#if defined(_WIN32)
    "the GPU's driver brings it";
#elif defined(__APPLE__)
    "MoltenVK brings it";
#else
    "Debian and Ubuntu have it in libvulkan1; a driver is needed, too: the GPU's, or mesa-vulkan-drivers";
#endif

vk::raii::Context load() {
    try {
        return {};
    } catch (const std::exception& e) {
        throw RuntimeError(fmt::format("no Vulkan loader ({}); {}", e.what(), how_to_install));
    }
}

vk::raii::Instance make_instance(const vk::raii::Context& context, uint32_t version, bool validation) {
    const vk::ApplicationInfo application("vkattn", 0, "vkattn", 0, version);
    const vk::ValidationFeatureEnableEXT sync = vk::ValidationFeatureEnableEXT::eSynchronizationValidation;
    const vk::ValidationFeaturesEXT checks(sync);
    vk::InstanceCreateInfo info({}, &application);
    const char* const extensions[] = {VK_EXT_DEBUG_UTILS_EXTENSION_NAME,
                                      VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME};
    if (validation) {
        info.setPEnabledLayerNames(validation_layer);
        info.setPEnabledExtensionNames(extensions);
        info.setPNext(&checks);
    }
    try {
        return {context, info};
    } catch (const vk::LayerNotPresentError&) {
        throw RuntimeError(
            "validation was asked for, but the layer VK_LAYER_KHRONOS_validation is not installed");
    } catch (const vk::SystemError& e) {
        throw RuntimeError(fmt::format("no Vulkan driver: {}", e.what()));
    }
}

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

// Preference among devices when none is named; the lowest wins.
int rank(const DeviceInfo& d) {
    const std::string order[] = {"discrete", "integrated", "virtual", "cpu"};
    return static_cast<int>(std::find(std::begin(order), std::end(order), d.type) - std::begin(order));
}

const char* type_name(vk::PhysicalDeviceType type) {
    switch (type) {
        case vk::PhysicalDeviceType::eDiscreteGpu:
            return "discrete";
        case vk::PhysicalDeviceType::eIntegratedGpu:
            return "integrated";
        case vk::PhysicalDeviceType::eVirtualGpu:
            return "virtual";
        case vk::PhysicalDeviceType::eCpu:
            return "cpu";
        default:
            return "other";
    }
}

// Asks vkattn itself whether the device can be used.
std::string refusal(const Instance& instance, VkPhysicalDevice device) {
    VkattnRequirements* requirements = nullptr;
    VkattnError error;
    vkattn_requirements_create(instance.context.getDispatcher()->vkGetInstanceProcAddr, *instance.instance,
                               device, &requirements, &error);
    vkattn_requirements_destroy(requirements);
    return error.message;
}

}  // namespace

Instance::Instance(bool validation, uint32_t api_version)
    : context(load()),
      instance(make_instance(context, std::min(context.enumerateInstanceVersion(), api_version), validation)),
      version(std::min(context.enumerateInstanceVersion(), api_version)) {}

DeviceInfo describe(const Instance& instance, const vk::raii::PhysicalDevice& device, uint32_t index) {
    DeviceInfo d;
    const auto basic = device.getProperties();
    d.index = index;
    d.name = basic.deviceName.data();
    d.type = type_name(basic.deviceType);
    d.vendor_id = basic.vendorID;
    d.api_version = basic.apiVersion;
    d.shared_memory_bytes = basic.limits.maxComputeSharedMemorySize;
    d.max_invocations = basic.limits.maxComputeWorkGroupInvocations;
    if (basic.apiVersion < VK_API_VERSION_1_2 || instance.version < VK_API_VERSION_1_2) {
        d.refusal = "Vulkan 1.2 is needed";
        return d;
    }
    const auto chain =
        device.getProperties2<vk::PhysicalDeviceProperties2, vk::PhysicalDeviceDriverProperties,
                              vk::PhysicalDeviceIDProperties, vk::PhysicalDeviceSubgroupProperties>();
    const auto& driver = chain.get<vk::PhysicalDeviceDriverProperties>();
    d.driver = fmt::format("{} {}", driver.driverName.data(), driver.driverInfo.data());
    for (uint8_t byte : chain.get<vk::PhysicalDeviceIDProperties>().deviceUUID)
        d.uuid += fmt::format("{:02x}", byte);
    d.subgroup_size = chain.get<vk::PhysicalDeviceSubgroupProperties>().subgroupSize;
    d.refusal = refusal(instance, *device);
    return d;
}

uint32_t pick_device(const std::vector<DeviceInfo>& devices, const std::string& given) {
    if (devices.empty()) throw RuntimeError("there is no Vulkan device on this machine");
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody here sets it
    const char* environment = std::getenv("VKATTN_DEVICE");
    const std::string wanted = lower(!given.empty() ? given : environment != nullptr ? environment : "");
    // A number is an index, or nothing: "2" is not to find an H200.
    const bool is_index = !wanted.empty() && wanted.size() < 32 &&
                          std::ranges::all_of(wanted, [](char c) { return c >= '0' && c <= '9'; });
    const DeviceInfo* best = nullptr;
    for (const DeviceInfo& d : devices) {
        std::string uuid = wanted;
        std::erase(uuid, '-');
        if (wanted.empty()) {
            if (d.refusal.empty() && (best == nullptr || rank(d) < rank(*best))) best = &d;
        } else if (wanted == std::to_string(d.index) || uuid == d.uuid) {
            return d.index;
        } else if (best == nullptr && !is_index && lower(d.name).find(wanted) != std::string::npos) {
            best = &d;
        }
    }
    if (best != nullptr) return best->index;
    std::string names;
    for (const DeviceInfo& d : devices)
        names += fmt::format("{}{} {}{}", names.empty() ? "" : "; ", d.index, d.name,
                             d.refusal.empty() ? "" : " (" + d.refusal + ")");
    if (wanted.empty()) throw RuntimeError("no Vulkan device here can run vkattn: " + names);
    throw RuntimeError(fmt::format("no device '{}'; there are: {}", wanted, names));
}

}  // namespace vkattn::runtime

namespace vkattn {

std::vector<DeviceInfo> list_devices() {
    const runtime::Instance instance(false, RuntimeOptions{}.api_version);
    std::vector<DeviceInfo> devices;
    for (const auto& device : instance.instance.enumeratePhysicalDevices())
        devices.push_back(runtime::describe(instance, device, static_cast<uint32_t>(devices.size())));
    return devices;
}

}  // namespace vkattn
