#include "device.hpp"

#include <algorithm>
#include <cstdlib>

#include "guarded.hpp"
#include "vulkan/context.hpp"

namespace vkattn::test {
namespace {

std::unique_ptr<Runtime> make_runtime(bool validation, bool host_memory, uint32_t api_version) {
    RuntimeOptions options;
    options.api_version = api_version;
    options.validation = validation;
    if (host_memory) options.extra_extensions = {VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME};
    return std::make_unique<Runtime>(options);
}

}  // namespace

VkattnContextInfo context_info_of(const RuntimeHandles& h) {
    VkattnContextInfo info = context_info();
    info.get_instance_proc_addr = h.get_instance_proc_addr;
    info.instance = h.instance;
    info.physical_device = h.physical_device;
    info.device = h.device;
    info.api_version = VK_API_VERSION_1_2;
    return info;
}

void require(VkResult result, const char* what) {
    if (result != VK_SUCCESS)
        throw RuntimeError(std::string(what) + " failed: VkResult " + std::to_string(result));
}

Device::Device(const RuntimeOptions& options) : runtime_(std::make_unique<Runtime>(options)) {
    load();
}

Device::Device(bool validation, uint32_t api_version) {
    // The fallback for devices without guard pages can be tested where there are some.
    const bool host_memory = std::getenv("VKATTN_TEST_NO_GUARD_PAGES") == nullptr;
    std::string why;
    for (const auto& [with_validation, with_host_memory] :
         {std::pair{validation, host_memory}, {validation, false}, {false, host_memory}, {false, false}}) {
        try {
            runtime_ = make_runtime(with_validation, with_host_memory, api_version);
            validated_ = with_validation;
            guard_pages_ = with_host_memory;
            break;
        } catch (const RuntimeError& e) {  // no layer, or no extension, or no device at all
            why = e.what();
        }
    }
    if (!runtime_) throw RuntimeError(why);
    load();
    if (!guard_pages_) return;
    read_host_memory_limits();
    guard_pages_ = addresses_are_host_pointers(*this);
}

void Device::load() {
    const RuntimeHandles h = runtime_->handles();
#define X(name) vk_.name = reinterpret_cast<PFN_##name>(h.get_instance_proc_addr(h.instance, #name));
    VKATTN_TEST_FUNCTIONS(X)
    X(vkGetMemoryHostPointerPropertiesEXT)
#undef X
}

void Device::read_host_memory_limits() {
    const VkPhysicalDevice physical = runtime_->handles().physical_device;
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT host{};
    host.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT;
    VkPhysicalDeviceProperties2 properties{};
    properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    properties.pNext = &host;
    vk_.vkGetPhysicalDeviceProperties2(physical, &properties);
    page_bytes_ = std::max<uint64_t>(host_page_bytes(), host.minImportedHostPointerAlignment);

    const VkPhysicalDeviceExternalBufferInfo asked{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
                                                   nullptr, 0, guarded_usage,
                                                   VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT};
    VkExternalBufferProperties answer{};
    answer.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES;
    vk_.vkGetPhysicalDeviceExternalBufferProperties(physical, &asked, &answer);
    unreported_import_ = (answer.externalMemoryProperties.externalMemoryFeatures &
                          VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT) == 0;
}

bool Device::has_matrix_unit(VkattnDtype dtype) const {
    const auto& shapes = runtime_->context()->caps.matrices;
    return std::any_of(shapes.begin(), shapes.end(), [&](const auto& s) { return s.dtype == dtype; });
}

std::vector<std::string> Device::take_messages() {
    const std::vector<std::string> all = runtime_->messages();
    std::vector<std::string> fresh(all.begin() + static_cast<std::ptrdiff_t>(messages_seen_), all.end());
    messages_seen_ = all.size();
    if (unreported_import_)
        std::erase_if(fresh, [](const std::string& message) {
            return message.find("VUID-VkBufferCreateInfo-pNext-00920") != std::string::npos ||
                   message.find("handleType-09861") != std::string::npos;
        });
    return fresh;
}

Recorder::Recorder(Device& device) : device_(device) {
    VkCommandPoolCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
    info.queueFamilyIndex = device.runtime().handles().queue_family;
    require(device.vk().vkCreateCommandPool(device.handle(), &info, nullptr, &pool_), "vkCreateCommandPool");
}

Recorder::~Recorder() {
    device_.vk().vkDestroyCommandPool(device_.handle(), pool_, nullptr);
}

VkCommandBuffer Recorder::begin() {
    VkCommandBufferAllocateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
    info.commandPool = pool_;
    info.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    info.commandBufferCount = 1;
    VkCommandBuffer commands = VK_NULL_HANDLE;
    require(device_.vk().vkAllocateCommandBuffers(device_.handle(), &info, &commands),
            "vkAllocateCommandBuffers");
    VkCommandBufferBeginInfo begin{};
    begin.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
    require(device_.vk().vkBeginCommandBuffer(commands, &begin), "vkBeginCommandBuffer");
    recorded_.push_back(commands);
    return commands;
}

void Recorder::end() {
    require(device_.vk().vkEndCommandBuffer(recorded_.back()), "vkEndCommandBuffer");
}

void Recorder::submit(Device& device, std::vector<VkCommandBuffer> commands) {
    Recorder last(device);
    full_barrier(device, last.begin());
    last.end();
    commands.push_back(last.recorded().front());
    VkSubmitInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
    info.commandBufferCount = static_cast<uint32_t>(commands.size());
    info.pCommandBuffers = commands.data();
    const VkQueue queue = device.runtime().handles().queue;
    require(device.vk().vkQueueSubmit(queue, 1, &info, VK_NULL_HANDLE), "vkQueueSubmit");
    require(device.vk().vkQueueWaitIdle(queue), "vkQueueWaitIdle");
}

void full_barrier(Device& device, VkCommandBuffer commands) {
    const VkMemoryBarrier all{
        VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VK_ACCESS_MEMORY_WRITE_BIT,
        VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_HOST_READ_BIT};
    device.vk().vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                                     VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0, 1,
                                     &all, 0, nullptr, 0, nullptr);
}

}  // namespace vkattn::test
