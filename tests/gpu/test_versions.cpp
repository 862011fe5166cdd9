// The library on instances of Vulkan 1.2, 1.3 and 1.4, under validation, with devices made as an application makes
// them: 16-bit problems, the probe, features merged into chains of the application's own.
#include <cstring>

#include "api_calls.hpp"
#include "backward_run.hpp"
#include "fixture.hpp"
#include "skip.hpp"
#include "vulkan/context.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr uint32_t versions[] = {VK_API_VERSION_1_2, VK_API_VERSION_1_3, VK_API_VERSION_1_4};

// A Runtime on an instance of one version. Messages of the validation layer fail the test.
struct OnVersion {
    explicit OnVersion(uint32_t version) : device(true, version) {}
    OnVersion(const OnVersion&) = delete;
    ~OnVersion() {
        for (const std::string& message : device.take_messages()) FAIL_CHECK("validation: " << message);
    }
    Device device;
    Runtime& runtime = device.runtime();
    RuntimeHandles handles = runtime.handles();
};

template <class T>
T make_struct(VkStructureType type) {
    T made{};
    made.sType = type;
    return made;
}

// The structs of features that an application may have. One may go into a chain only once.
struct OwnChain {
    explicit OwnChain(std::initializer_list<void*> structs) {
        for (void* s : structs) {
            (first == nullptr ? first : last->pNext) = static_cast<VkBaseOutStructure*>(s);
            last = static_cast<VkBaseOutStructure*>(s);
        }
    }
    int count(VkStructureType type) const {
        int found = 0;
        for (const VkBaseOutStructure* s = first; s != nullptr; s = s->pNext) found += s->sType == type;
        return found;
    }
    VkBaseOutStructure *first = nullptr, *last = nullptr;
};

// A device of the application's own, with what the requirements name and the application's chain.
class OwnDevice {
  public:
    OwnDevice(const OnVersion& on, const Requirements& needed, const void* chain) : on_(on) {
        const RuntimeHandles& h = on.handles;
        const float priority = 1;
        VkDeviceQueueCreateInfo queue{};
        queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
        queue.queueFamilyIndex = h.queue_family;
        queue.queueCount = 1;
        queue.pQueuePriorities = &priority;
        VkDeviceCreateInfo info{};
        info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
        info.pNext = chain;
        info.queueCreateInfoCount = 1;
        info.pQueueCreateInfos = &queue;
        info.enabledExtensionCount = needed.extensions(&info.ppEnabledExtensionNames);
        REQUIRE(load<PFN_vkCreateDevice>("vkCreateDevice")(h.physical_device, &info, nullptr, &device_) ==
                VK_SUCCESS);
    }
    OwnDevice(const OwnDevice&) = delete;
    ~OwnDevice() { load<PFN_vkDestroyDevice>("vkDestroyDevice")(device_, nullptr); }

    VkattnContextInfo context_info(const void* chain, uint32_t version) const {
        VkattnContextInfo info = context_info_of(on_.handles);
        info.device = device_;
        info.api_version = version;
        info.features = static_cast<const VkPhysicalDeviceFeatures2*>(chain);
        return info;
    }

  private:
    template <class F>
    F load(const char* name) const {
        return reinterpret_cast<F>(on_.handles.get_instance_proc_addr(on_.handles.instance, name));
    }

    const OnVersion& on_;
    VkDevice device_ = VK_NULL_HANDLE;
};

// An old loader holds a device to its own version, as Debian 12's does on a machine with a new driver.
uint32_t loader_version(const OnVersion& on) {
    const auto enumerate = reinterpret_cast<PFN_vkEnumerateInstanceVersion>(
        on.handles.get_instance_proc_addr(VK_NULL_HANDLE, "vkEnumerateInstanceVersion"));
    uint32_t version = VK_API_VERSION_1_0;
    if (enumerate != nullptr) enumerate(&version);
    return version;
}

Requirements requirements_of(const OnVersion& on) {
    return {on.handles.get_instance_proc_addr, on.handles.instance, on.handles.physical_device};
}

// Merges into the chain, creates a device from it, and a context that must see all that one with vkattn's own chain
// sees.
void check_merged(const OnVersion& on, uint32_t version, const Requirements& needed, const OwnChain& chain) {
    needed.merge(chain.first);
    const OwnDevice own(on, needed, chain.first);
    const Context context(own.context_info(chain.first, version));
    const Context other(own.context_info(needed.features(), version));
    core::DeviceCaps seen = context.get()->caps;
    CHECK(seen.buffer_device_address);
    seen.int64 = other.get()->caps.int64;  // of VkPhysicalDeviceFeatures2, which not all of these chains have
    CHECK(seen == other.get()->caps);
}

}  // namespace

TEST_CASE_FIXTURE(
    OnDevice, "versions: 16-bit problems, matrix kernels and the probe are valid Vulkan 1.2, 1.3 and 1.4") {
    for (const uint32_t version : versions) {
        CAPTURE(version);
        OnVersion on(version);
        VkattnContext* const context = on.runtime.context();
        CHECK(context->caps.api_version ==
              std::min({version, loader_version(on), on.device.info().api_version}));
        const bool matrix = on.device.has_matrix_unit(VKATTN_DTYPE_FLOAT16);
        if (!matrix) skip("matrix kernels by version: " + on.device.info().name + " has no unit for float16");
        for (const char* text :
             {"h=2 sq=9 skv=21 d=16", "h=2 sq=9 skv=21 d=16 dtype=bf16",
              "h=2 sq=9 skv=21 d=16 dtype=f16 kernel=tiles", "h=2 sq=1 skv=300 d=16 dtype=f16 splits=3",
              "hq=4 hkv=2 sq=37 skv=71 causal dtype=f16 kernel=matrix",
              "hq=4 hkv=2 sq=37 skv=71 causal dtype=f16 kernel=matrix_khr"}) {
            if (!matrix && std::strstr(text, "matrix") != nullptr) continue;
            const Report report = run_case(on.device, context, parse_case(text, "here"));
            CAPTURE(text);
            CHECK(report.skipped == "");
            for (const std::string& failure : report.failures) FAIL_CHECK(failure);
        }
        const char* const backward = "hq=4 hkv=2 sq=9 skv=21 d=16 causal dtype=f16";
        for (const std::string& failure :
             run_backward_case(on.device, context, parse_case(backward, "here")).failures)
            FAIL_CHECK(failure);
    }
}

TEST_CASE_FIXTURE(OnDevice, "features are merged into an application's chain of the versions' structs") {
    for (const uint32_t version : versions) {
        CAPTURE(version);
        OnVersion on(version);
        auto root = make_struct<VkPhysicalDeviceFeatures2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2);
        auto v11 = make_struct<VkPhysicalDeviceVulkan11Features>(
            VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES);
        auto v12 = make_struct<VkPhysicalDeviceVulkan12Features>(
            VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
        auto v13 = make_struct<VkPhysicalDeviceVulkan13Features>(
            VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES);
        v12.timelineSemaphore = VK_TRUE;
        const bool has_v13 = on.runtime.context()->caps.api_version >= VK_API_VERSION_1_3;
        const OwnChain chain = has_v13 ? OwnChain{&v12, &root, &v13, &v11} : OwnChain{&root, &v11, &v12};
        const Requirements needed = requirements_of(on);
        check_merged(on, version, needed, chain);
        CHECK(v12.bufferDeviceAddress == VK_TRUE);
        CHECK(v12.timelineSemaphore == VK_TRUE);
        CHECK(v12.descriptorIndexing == VK_FALSE);
        CHECK(chain.count(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES) == 0);
        CHECK(chain.count(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES) == 0);
        CHECK(chain.count(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES) <=
              (has_v13 ? 0 : 1));
    }
}

TEST_CASE_FIXTURE(OnDevice, "features are merged into an application's chain of single structs") {
    OnVersion on(VK_API_VERSION_1_2);
    auto address = make_struct<VkPhysicalDeviceBufferDeviceAddressFeatures>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES);
    auto semaphores = make_struct<VkPhysicalDeviceTimelineSemaphoreFeatures>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES);
    auto storage = make_struct<VkPhysicalDevice16BitStorageFeatures>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES);
    semaphores.timelineSemaphore = VK_TRUE;
    const OwnChain chain{&semaphores, &storage, &address};
    const Requirements needed = requirements_of(on);
    check_merged(on, VK_API_VERSION_1_2, needed, chain);
    CHECK(address.bufferDeviceAddress == VK_TRUE);
    CHECK(storage.uniformAndStorageBuffer16BitAccess == VK_FALSE);
    CHECK(semaphores.timelineSemaphore == VK_TRUE);
    for (const VkStructureType type : {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES,
                                       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES,
                                       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES})
        CHECK(chain.count(type) == 1);
    // A struct of a version that the chain has beside single ones of other versions is filled, too.
    auto v11 =
        make_struct<VkPhysicalDeviceVulkan11Features>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES);
    auto model = make_struct<VkPhysicalDeviceVulkanMemoryModelFeatures>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES);
    const OwnChain mixed{&v11, &model};
    check_merged(on, VK_API_VERSION_1_2, needed, mixed);
    CHECK(mixed.count(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES) == 0);
    CHECK(mixed.count(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES) == 1);
}

TEST_CASE_FIXTURE(OnDevice, "one requirements object merges into several chains, and refuses null") {
    const RuntimeHandles h = runtime.handles();
    VkattnRequirements* needed = nullptr;
    REQUIRE(vkattn_requirements_create(h.get_instance_proc_addr, h.instance, h.physical_device, &needed,
                                       nullptr) == VKATTN_OK);
    auto first = make_struct<VkPhysicalDeviceFeatures2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2);
    auto second = first;
    for (auto* chain : {&first, &second, &first})
        CHECK(vkattn_requirements_merge(needed, chain, nullptr) == VKATTN_OK);
    const OwnChain one{&first}, two{&second};
    CHECK(one.count(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES) == 1);
    CHECK(two.count(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES) == 1);
    CHECK(first.pNext != second.pNext);
    check_invalid(call(vkattn_requirements_merge, needed, nullptr), "chain");
    check_invalid(call(vkattn_requirements_merge, nullptr, static_cast<void*>(&first)), "requirements");
    vkattn_requirements_destroy(needed);
}
