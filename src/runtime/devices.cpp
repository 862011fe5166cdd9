#include "devices.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include <fmt/format.h>

#include "guarded.hpp"
#include "loader.hpp"
#include "vkattn/vkattn.hpp"

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
        vk::raii::Context context;
        // The class has no other way to be given functions, but its table may be written to.
        if (stands_between != nullptr) {
            auto& functions = const_cast<vk::raii::detail::ContextDispatcher&>(*context.getDispatcher());
            functions = {stands_between(functions.vkGetInstanceProcAddr)};
        }
        return context;
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& e) {
        fail(VKATTN_UNSUPPORTED, fmt::format("no Vulkan loader ({}); {}", e.what(), how_to_install));
    }
}

// vulkan.hpp allocates its table of functions when Vulkan has made an object, and drops the object where that fails.
vk::raii::Instance own_instance(const vk::raii::Context& context, const VkInstanceCreateInfo& info) {
    VkInstance made = VK_NULL_HANDLE;
    const auto& functions = *context.getDispatcher();
    vk::detail::resultCheck(vk::Result(functions.vkCreateInstance(&info, nullptr, &made)),
                            "vkCreateInstance");
    try {
        return {context, made};
    } catch (...) {
        const PFN_vkVoidFunction destroy = functions.vkGetInstanceProcAddr(made, "vkDestroyInstance");
        reinterpret_cast<PFN_vkDestroyInstance>(destroy)(made, nullptr);
        throw;
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
        return own_instance(context, info);
    } catch (const vk::LayerNotPresentError&) {
        fail(VKATTN_UNSUPPORTED,
             "validation was asked for, but the layer VK_LAYER_KHRONOS_validation is not installed");
    } catch (const vk::IncompatibleDriverError& e) {
        fail(VKATTN_UNSUPPORTED, fmt::format("no Vulkan driver: {}", e.what()), "",
             VK_ERROR_INCOMPATIBLE_DRIVER);
    } catch (const vk::InitializationFailedError& e) {
        fail(VKATTN_UNSUPPORTED, fmt::format("no Vulkan driver: {}", e.what()), "",
             VK_ERROR_INITIALIZATION_FAILED);
    }
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
    const VkattnStatus status =
        vkattn_requirements_create(instance.context.getDispatcher()->vkGetInstanceProcAddr,
                                   *instance.instance, device, &requirements, &error);
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
    if (result == VK_ERROR_DEVICE_LOST) throw vk::DeviceLostError(doing);
    fail(result == VK_ERROR_OUT_OF_HOST_MEMORY ? VKATTN_OUT_OF_HOST_MEMORY : VKATTN_DEVICE_ERROR,
         fmt::format("{} failed: {}", doing, vk::to_string(static_cast<vk::Result>(result))), "", result);
}

vk::raii::Device own_device(const vk::raii::PhysicalDevice& physical, const VkDeviceCreateInfo& info) {
    VkDevice made = VK_NULL_HANDLE;
    const auto& functions = *physical.getDispatcher();
    vk::detail::resultCheck(vk::Result(functions.vkCreateDevice(*physical, &info, nullptr, &made)),
                            "vkCreateDevice");
    try {
        return {physical, made};
    } catch (...) {
        const PFN_vkVoidFunction destroy = functions.vkGetDeviceProcAddr(made, "vkDestroyDevice");
        reinterpret_cast<PFN_vkDestroyDevice>(destroy)(made, nullptr);
        throw;
    }
}

Instance::Instance(bool validation, uint32_t api_version)
    : context(load()),
      instance(make_instance(context, std::min(context.enumerateInstanceVersion(), api_version), validation)),
      version(std::min(context.enumerateInstanceVersion(), api_version)) {}

VkattnDeviceInfo describe(const Instance& instance, const vk::raii::PhysicalDevice& device, uint32_t index) {
    VkattnDeviceInfo d;
    vkattn_device_info_init(&d);
    const auto basic = device.getProperties();
    d.index = index;
    set_text(d.name, basic.deviceName.data());
    set_text(d.type, type_name(basic.deviceType));
    d.vendor_id = basic.vendorID;
    d.api_version = basic.apiVersion;
    d.shared_memory_bytes = basic.limits.maxComputeSharedMemorySize;
    d.max_invocations = basic.limits.maxComputeWorkGroupInvocations;
    if (basic.apiVersion < VK_API_VERSION_1_2 || instance.version < VK_API_VERSION_1_2) {
        set_text(d.refusal, "Vulkan 1.2 is needed");
        return d;
    }
    const auto chain =
        device.getProperties2<vk::PhysicalDeviceProperties2, vk::PhysicalDeviceDriverProperties,
                              vk::PhysicalDeviceIDProperties, vk::PhysicalDeviceSubgroupProperties>();
    const auto& driver = chain.get<vk::PhysicalDeviceDriverProperties>();
    set_text(d.driver, fmt::format("{} {}", driver.driverName.data(), driver.driverInfo.data()));
    std::string uuid;
    for (uint8_t byte : chain.get<vk::PhysicalDeviceIDProperties>().deviceUUID)
        uuid += fmt::format("{:02x}", byte);
    set_text(d.uuid, uuid);
    d.subgroup_size = chain.get<vk::PhysicalDeviceSubgroupProperties>().subgroupSize;
    set_text(d.refusal, refusal(instance, *device));
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
    for (const auto& device : instance.instance.enumeratePhysicalDevices())
        devices.push_back(describe(instance, device, static_cast<uint32_t>(devices.size())));
    return devices;
}

}  // namespace vkattn::runtime
