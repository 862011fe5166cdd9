// A device with all that plans need, from the loader to the probe of the matrix units.
#include "runtime.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

using namespace vkattn;
using namespace vkattn::runtime;

namespace {

// Sections of the cache file: what Vulkan says of its cache, and the verdicts of the self-test. The features that
// kernels use, and thereby which kernels there are, depend on the instance's version.
constexpr const char* pipelines_section = "pipelines";
std::string verdicts_section(uint32_t version) {
    return fmt::format("self-test, Vulkan {}.{}", VK_API_VERSION_MAJOR(version),
                       VK_API_VERSION_MINOR(version));
}

// These stand where verdicts will: a test that does not end is begun twice. Once may be a user's Ctrl-C, or another
// process that is at it.
constexpr std::string_view test_begun = "begun", test_begun_twice = "begun twice";

bool is_lost(const std::exception& error) {
    if (const auto* const of_vulkan = dynamic_cast<const VulkanError*>(&error))
        return of_vulkan->result() == VK_ERROR_DEVICE_LOST;
    const auto* const of_library = dynamic_cast<const Error*>(&error);
    return of_library != nullptr && of_library->status() == VKATTN_DEVICE_LOST;
}

CacheKey key_of(const VkPhysicalDeviceProperties& device) {
    return {device.vendorID,
            device.deviceID,
            device.driverVersion,
            device.apiVersion,
            std::to_array(device.pipelineCacheUUID),
            vkattn_version()};
}

// The extensions that the library needs, and those that the user adds.
std::vector<const char*> extensions_of(const Options& options, const Requirements& requirements) {
    std::vector<const char*> all = options.extra_extensions;
    const char* const* wanted = nullptr;
    const uint32_t count = requirements.extensions(&wanted);
    all.insert(all.end(), wanted, wanted + count);
    return all;
}

// Its caller is C: a message for which there is no memory is lost.
VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT,
                                          VkDebugUtilsMessageTypeFlagsEXT,
                                          const VkDebugUtilsMessengerCallbackDataEXT* data, void* user) {
    try {
        static_cast<VkattnRuntime*>(user)->add_message(data->pMessage);
    } catch (const std::exception&) {
    }
    return VK_FALSE;
}

// Keeps the context's warnings: they are about something that is not used. Its caller catches what this throws.
void on_context_message(void* user, VkattnMessageLevel level, const char* text) {
    if (level == VKATTN_MESSAGE_WARNING) static_cast<VkattnRuntime*>(user)->add_message(text);
}

}  // namespace

VkattnRuntime::VkattnRuntime(const Options& options) : instance(options.validation, options.api_version) {
    const VkDebugUtilsMessengerCreateInfoEXT messages_info{
        VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        nullptr,
        0,
        VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
        on_message,
        this};
    if (options.validation)
        messenger = {instance.handle, instance.vk.vkCreateDebugUtilsMessengerEXT,
                     instance.vk.vkDestroyDebugUtilsMessengerEXT, messages_info,
                     "vk::raii::Instance::createDebugUtilsMessengerEXT"};
    const std::vector<VkPhysicalDevice> physicals = instance.devices();
    std::vector<VkattnDeviceInfo> infos;
    infos.reserve(physicals.size());
    for (VkPhysicalDevice p : physicals)
        infos.push_back(describe(instance, p, static_cast<uint32_t>(infos.size())));
    const uint32_t index = pick_device(infos, options.device);
    info = infos[index];
    physical = physicals[index];
    handles.struct_size = sizeof handles;
    handles.get_instance_proc_addr = instance.loader.get_instance_proc_addr();
    handles.instance = instance.handle;
    handles.physical_device = physical;
    const Requirements requirements(handles.get_instance_proc_addr, handles.instance, physical);
    make_device(options, requirements);
    cache_file = options.pipeline_cache;
    cache_failed = options.cache_failed;
    load_cache();
    make_context(options, requirements);
    make_memory();
    probe();
    if (options.self_test == VKATTN_SELF_TEST_ALWAYS ||
        (options.self_test == VKATTN_SELF_TEST_ONCE && !cache_file.empty()))
        self_test(options);
}

VkattnRuntime::~VkattnRuntime() {
    try_to([&] {
        while (!under_way.empty()) finish_oldest();
    });
    try_to([&] { save_cache(); });
}

void VkattnRuntime::make_device(const Options& options, const Requirements& requirements) {
    const auto families =
        enumerate(VkQueueFamilyProperties{}, "", [&](uint32_t* count, VkQueueFamilyProperties* f) {
            instance.vk.vkGetPhysicalDeviceQueueFamilyProperties(physical, count, f);
            return VK_SUCCESS;
        });
    for (uint32_t i = 0; i < families.size() && family == UINT32_MAX; i++)
        if ((families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) != 0) family = i;
    if (family == UINT32_MAX) fail(VKATTN_UNSUPPORTED, std::string(info.name) + " has no compute queue");
    timestamp_bits = families[family].timestampValidBits;
    timestamp_ns = static_cast<double>(instance.properties(physical).limits.timestampPeriod);

    std::vector<const char*> extensions = extensions_of(options, requirements);
    sharing.emplace(instance, physical);
    extensions.insert(extensions.end(), sharing->extensions.begin(), sharing->extensions.end());
    const VkPhysicalDeviceTimelineSemaphoreFeatures timeline{
        // every device of Vulkan 1.2 has them
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES,
        const_cast<void*>(static_cast<const void*>(requirements.features())), VK_TRUE};
    const float priority = 1;
    const VkDeviceQueueCreateInfo queue_info{
        VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, nullptr, 0, family, 1, &priority};
    VkDeviceCreateInfo device_info{};
    device_info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
    device_info.pNext = &timeline;
    device_info.queueCreateInfoCount = 1;
    device_info.pQueueCreateInfos = &queue_info;
    device_info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
    device_info.ppEnabledExtensionNames = extensions.data();
    device.emplace(instance, physical, device_info);
    const DeviceFunctions& vk = device->vk;
    vk.vkGetDeviceQueue(device->handle, family, 0, &queue);
    handles.device = device->handle;
    handles.queue = queue;
    handles.queue_family = family;
    const VkCommandPoolCreateInfo pool_info{
        VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, nullptr,
        VK_COMMAND_POOL_CREATE_TRANSIENT_BIT | VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, family};
    pool = {device->handle, vk.vkCreateCommandPool, vk.vkDestroyCommandPool, pool_info,
            "vk::raii::Device::createCommandPool"};
    const VkQueryPoolCreateInfo queries_info{
        VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO, nullptr, 0, VK_QUERY_TYPE_TIMESTAMP, 2, 0};
    if (timestamp_bits != 0)
        queries = {device->handle, vk.vkCreateQueryPool, vk.vkDestroyQueryPool, queries_info,
                   "vk::raii::Device::createQueryPool"};
}

void VkattnRuntime::load_cache() {
    cache_key = key_of(instance.properties(physical));
    CacheSections sections;
    std::string why_unused;
    if (!cache_file.empty()) sections = read_cache_file(cache_file, cache_key, &why_unused);
    if (!why_unused.empty())
        add_message(fmt::format("the pipeline cache {} is not used: it {}", cache_file, why_unused));
    const std::vector<char>& data = sections[pipelines_section];
    const std::vector<char>& verdicts = sections[verdicts_section(instance.version)];
    kept_verdicts.assign(verdicts.begin(), verdicts.end());
    const auto create = [&](const std::vector<char>& content) -> Owned<VkPipelineCache> {
        const VkPipelineCacheCreateInfo i{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO, nullptr, 0,
                                          content.size(), content.data()};
        return {device->handle, device->vk.vkCreatePipelineCache, device->vk.vkDestroyPipelineCache, i,
                "vk::raii::Device::createPipelineCache"};
    };
    try {
        cache = create(data);
    } catch (const VulkanError& e) {
        if (is_lost(e)) throw;
        cache = create({});
        if (!data.empty())
            add_message(
                fmt::format("the driver did not take the pipeline cache {}: {}", cache_file, e.what()));
    }
}

// The file's other sections stay as they are now, because another process may have written them since this one began.
// A file that has the content already is not written: it may be read-only for good.
void VkattnRuntime::keep(const std::string& section, const std::vector<char>& content) {
    CacheSections sections = read_cache_file(cache_file, cache_key);
    const auto known = sections.find(section);
    if (known != sections.end() && known->second == content) return;
    sections[section] = content;
    const std::string why = write_cache_file(cache_file, cache_key, sections);
    if (!why.empty()) fail(VKATTN_INVALID_ARGUMENT, why, "options.pipeline_cache");
}
void VkattnRuntime::save_cache() {
    if (cache_file.empty()) return;
    keep(pipelines_section,
         enumerate<size_t>(char{}, "vk::raii::PipelineCache::getData", [&](size_t* size, char* data) {
             return device->vk.vkGetPipelineCacheData(device->handle, *cache, size, data);
         }));
}

// A cache that cannot be written costs time at the next start, nothing else. The caller hears once of a file that
// cannot be written; other failures are not the file's.
template <class Keep>
void VkattnRuntime::try_to(const Keep& keep) {
    try {
        keep();
    } catch (const Error& e) {
        if (e.field() != "options.pipeline_cache") return;
        if (const auto tell = std::exchange(cache_failed, nullptr)) tell(e.what());
    } catch (const std::exception&) {
        return;
    }
}
void VkattnRuntime::keep_verdicts(std::string_view text) {
    if (cache_file.empty()) return;
    try_to([&] { keep(verdicts_section(instance.version), {text.begin(), text.end()}); });
}

void VkattnRuntime::make_context(const Options& options, const Requirements& requirements) {
    VkattnContextInfo i = context_info();
    i.get_instance_proc_addr = handles.get_instance_proc_addr;
    i.instance = handles.instance;
    i.physical_device = handles.physical_device;
    i.device = handles.device;
    i.api_version = instance.version;
    const std::vector<const char*> extensions = extensions_of(options, requirements);
    i.enabled_extension_count = static_cast<uint32_t>(extensions.size());
    i.enabled_extensions = extensions.data();
    i.features = requirements.features();
    i.pipeline_cache = *cache;
    i.debug_utils = instance.debug_utils ? 1 : 0;
    i.message = on_context_message;
    i.message_user = this;
    const bool has_verdicts = kept_verdicts != test_begun && kept_verdicts != test_begun_twice;
    if (options.self_test == VKATTN_SELF_TEST_ONCE && has_verdicts)
        i.self_test_verdicts = kept_verdicts.c_str();
    context = Context(i);
}

void VkattnRuntime::make_memory() {
    VmaVulkanFunctions functions{};
    functions.vkGetInstanceProcAddr = handles.get_instance_proc_addr;
    functions.vkGetDeviceProcAddr = instance.vk.vkGetDeviceProcAddr;
    VmaAllocatorCreateInfo i{};
    i.flags = VMA_ALLOCATOR_CREATE_BUFFER_DEVICE_ADDRESS_BIT;
    i.instance = handles.instance;
    i.physicalDevice = handles.physical_device;
    i.device = handles.device;
    i.pVulkanFunctions = &functions;
    i.vulkanApiVersion = std::min(instance.version, info.api_version);
    memory.emplace(i, staging_bytes);
}

void VkattnRuntime::probe() {
    const uint64_t size = context.probe_size();
    if (size == 0) return;
    // A device that fails it is as good as any for everything else.
    try {
        VkattnBuffer results(*this, size);
        results.fill(0);
        submit([&](VkCommandBuffer c) { context.record_probe(c, results.address); });
        std::vector<std::byte> data(size);
        results.read(0, data.data(), size);
        context.probed(data.data(), size);
    } catch (const std::exception& e) {
        if (is_lost(e)) throw;
        add_message(std::string("the probe of the matrix units failed: ") + e.what());
    }
}

// Returns false if it was stopped.
bool VkattnRuntime::test_kernels(const Options& options) {
    while (const uint64_t size = context.self_test_size()) {
        const uint32_t count = context.self_test_count();
        for (uint32_t i = 0; i < count; i++) {
            if (options.self_test_stops(i, count + 1, "compiling the self-test")) return false;
            context.build_self_test(i);
        }
        if (options.self_test_stops(count, count + 1, "running the self-test")) return false;
        VkattnBuffer tested(*this, size);
        submit([&](VkCommandBuffer c) { context.record_self_test(c, tested.buffer, 0, tested.address); });
        std::vector<std::byte> data(size);
        tested.read(0, data.data(), size);
        context.self_tested(data.data(), size);
    }
    return true;
}

// A kernel that fails is not planned, of which the context tells. A test that cannot be run says nothing of any kernel.
// A test that has twice not ended, because it lost the device or ended the process, is not begun again: the file
// remembers it, and for that has to be told before the test, and right after it.
// A test that is stopped leaves what the file said before.
void VkattnRuntime::self_test(const Options& options) {
    if (kept_verdicts == test_begun_twice && options.self_test == VKATTN_SELF_TEST_ONCE)
        return add_message(
            "the self-test of the kernels was begun at two earlier starts and did not end, so it is left "
            "out");
    try {
        const bool tests = context.self_test_size() != 0;
        if (tests) keep_verdicts(kept_verdicts == test_begun ? test_begun_twice : test_begun);
        const bool ended = test_kernels(options);
        if (!ended)
            add_message("the self-test of the kernels was stopped: those without a verdict may be wrong");
        if (tests) keep_verdicts(ended ? context.self_test_verdicts() : kept_verdicts);
    } catch (const std::exception& e) {
        if (is_lost(e)) throw;
        keep_verdicts({});
        add_message(std::string("the self-test of the kernels could not be run: ") + e.what());
    }
}

void VkattnRuntime::add_message(std::string text) {
    const std::lock_guard lock(messages_mutex);
    messages.push_back(std::move(text));
}
