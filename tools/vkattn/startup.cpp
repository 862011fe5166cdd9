#include "startup.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <vector>

namespace vkattn::tools {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Vulkan as the library sees it, with pipelines counted: Vulkan's functions have no room for a pointer of ours.
struct Counting {
    static inline PFN_vkGetInstanceProcAddr get_instance_proc = nullptr;
    static inline PFN_vkGetDeviceProcAddr get_device_proc = nullptr;
    static inline PFN_vkCreateComputePipelines create_pipelines = nullptr;
    static inline uint32_t built = 0;

    static VkResult VKAPI_CALL create(VkDevice device, VkPipelineCache cache, uint32_t count,
                                      const VkComputePipelineCreateInfo* infos,
                                      const VkAllocationCallbacks* memory, VkPipeline* pipelines) {
        built += count;
        return create_pipelines(device, cache, count, infos, memory, pipelines);
    }
    static PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice device, const char* name) {
        const PFN_vkVoidFunction real = get_device_proc(device, name);
        if (std::string_view(name) != "vkCreateComputePipelines") return real;
        create_pipelines = reinterpret_cast<PFN_vkCreateComputePipelines>(real);
        return reinterpret_cast<PFN_vkVoidFunction>(&create);
    }
    static PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance instance, const char* name) {
        const PFN_vkVoidFunction real = get_instance_proc(instance, name);
        if (std::string_view(name) != "vkGetDeviceProcAddr") return real;
        get_device_proc = reinterpret_cast<PFN_vkGetDeviceProcAddr>(real);
        return reinterpret_cast<PFN_vkVoidFunction>(&device_proc);
    }
};

#define VKATTN_STARTUP_FUNCTIONS(X) \
    X(vkCreatePipelineCache)        \
    X(vkDestroyPipelineCache)       \
    X(vkGetPipelineCacheData)       \
    X(vkCreateCommandPool)          \
    X(vkDestroyCommandPool)         \
    X(vkResetCommandPool)           \
    X(vkAllocateCommandBuffers)     \
    X(vkBeginCommandBuffer)         \
    X(vkEndCommandBuffer)

struct Functions {
    explicit Functions(const RuntimeHandles& h) {
#define X(name) name = reinterpret_cast<PFN_##name>(h.get_instance_proc_addr(h.instance, #name));
        VKATTN_STARTUP_FUNCTIONS(X)
#undef X
    }
#define X(name) PFN_##name name;
    VKATTN_STARTUP_FUNCTIONS(X)
#undef X
};

void check(VkResult result, const char* what) {
    if (result != VK_SUCCESS) throw RuntimeError(std::string(what) + " failed while startup was measured");
}

class Cache {
  public:
    Cache(const Functions& vk, VkDevice device, const std::vector<char>& data) : vk_(vk), device_(device) {
        VkPipelineCacheCreateInfo info{};
        info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
        info.initialDataSize = data.size();
        info.pInitialData = data.data();
        check(vk_.vkCreatePipelineCache(device_, &info, nullptr, &cache_), "vkCreatePipelineCache");
    }
    ~Cache() { vk_.vkDestroyPipelineCache(device_, cache_, nullptr); }
    Cache(const Cache&) = delete;

    VkPipelineCache get() const { return cache_; }
    std::vector<char> data() const {
        size_t size = 0;
        check(vk_.vkGetPipelineCacheData(device_, cache_, &size, nullptr), "vkGetPipelineCacheData");
        std::vector<char> all(size);
        check(vk_.vkGetPipelineCacheData(device_, cache_, &size, all.data()), "vkGetPipelineCacheData");
        return all;
    }

  private:
    const Functions& vk_;
    VkDevice device_;
    VkPipelineCache cache_ = VK_NULL_HANDLE;
};

// A command buffer that is recorded again and again, and never submitted.
class Commands {
  public:
    Commands(const Functions& vk, const RuntimeHandles& h) : vk_(vk), device_(h.device) {
        VkCommandPoolCreateInfo pool{};
        pool.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
        pool.queueFamilyIndex = h.queue_family;
        check(vk_.vkCreateCommandPool(device_, &pool, nullptr, &pool_), "vkCreateCommandPool");
        VkCommandBufferAllocateInfo info{};
        info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
        info.commandPool = pool_;
        info.commandBufferCount = 1;
        check(vk_.vkAllocateCommandBuffers(device_, &info, &commands_), "vkAllocateCommandBuffers");
    }
    ~Commands() { vk_.vkDestroyCommandPool(device_, pool_, nullptr); }
    Commands(const Commands&) = delete;

    // Milliseconds of `record` alone.
    template <class Record>
    double time(const Record& record) {
        VkCommandBufferBeginInfo begin{};
        begin.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
        check(vk_.vkResetCommandPool(device_, pool_, 0), "vkResetCommandPool");
        check(vk_.vkBeginCommandBuffer(commands_, &begin), "vkBeginCommandBuffer");
        const Clock::time_point start = Clock::now();
        record(commands_);
        const double ms = milliseconds_since(start);
        check(vk_.vkEndCommandBuffer(commands_), "vkEndCommandBuffer");
        return ms;
    }

  private:
    const Functions& vk_;
    VkDevice device_;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    VkCommandBuffer commands_ = VK_NULL_HANDLE;
};

class Measurement {
  public:
    Measurement(Runtime& runtime, const VkattnProblem& problem, bool bshd, const StartupWork& work)
        : runtime_(runtime), problem_(problem), bshd_(bshd), work_(work) {}

    Startup run() {
        Startup s;
        Counting::get_instance_proc = h_.get_instance_proc_addr;
        std::vector<char> left;
        {
            const Cache cache(vk_, h_.device, {});
            s.cold_ms = first_use(cache, nullptr);
            left = cache.data();
        }
        const Cache cache(vk_, h_.device, left);
        s.warm_ms = first_use(cache, &s);
        return s;
    }

  private:
    Context make_context(const Cache& cache) const {
        const Requirements needed(h_.get_instance_proc_addr, h_.instance, h_.physical_device);
        VkattnContextInfo info = context_info();
        info.get_instance_proc_addr = &Counting::instance_proc;
        info.instance = h_.instance;
        info.physical_device = h_.physical_device;
        info.device = h_.device;
        info.api_version = VK_API_VERSION_1_2;
        info.features = needed.features();
        info.enabled_extension_count = needed.extensions(&info.enabled_extensions);
        info.pipeline_cache = cache.get();
        return Context(info);
    }

    // As the runtime does with its own context: else other pipelines than those of the bench would be built. Not
    // timed: an embedder may keep the results from run to run.
    void probe(const Context& context) {
        std::vector<std::byte> data(context.probe_size());
        if (data.empty()) return;
        const Buffer results = runtime_.allocate(data.size());
        runtime_.fill(results, 0);
        runtime_.submit([&](VkCommandBuffer c) { context.record_probe(c, results.address()); });
        runtime_.download(results, data);
        try {
            context.probed(data.data(), data.size());
        } catch (const Error&) {
            return;  // A device that fails the probe is measured without it, as the runtime's own context is.
        }
    }

    // Milliseconds until the first recording is done; then the later ones, if they are wanted.
    double first_use(const Cache& cache, Startup* later) {
        Commands commands(vk_, h_);
        Clock::time_point start = Clock::now();
        const Context context = make_context(cache);
        double ms = milliseconds_since(start);
        probe(context);
        start = Clock::now();
        const Plan plan = work_.plan(context.get(), problem_);
        ms += milliseconds_since(start);
        const Buffer scratch = runtime_.allocate(plan.scratch().size_bytes);
        ms += commands.time([&](VkCommandBuffer c) { work_.record(c, plan, scratch); });
        if (later != nullptr) time_later_uses(context, commands, *later);
        return ms;
    }

    // By so many keys, which a mask may leave out; more queries could take another kernel.
    VkattnProblem longer(uint32_t by) const {
        VkattnProblem p = problem_;
        p.seqlen_kv += by;
        set_dense_layout(p, bshd_);
        return p;
    }

    void time_later_uses(const Context& context, Commands& commands, Startup& s) {
        std::vector<double> plan_us, record_us;
        const uint32_t before = Counting::built;
        for (uint32_t i = 1; i <= lengths; i++) {
            const VkattnProblem other = longer(i);
            const Clock::time_point start = Clock::now();
            const Plan plan = work_.plan(context.get(), other);
            plan_us.push_back(1e3 * milliseconds_since(start));
            const Buffer scratch = runtime_.allocate(plan.scratch().size_bytes);
            record_us.push_back(1e3 *
                                commands.time([&](VkCommandBuffer c) { work_.record(c, plan, scratch); }));
        }
        s.plan_us = median(plan_us);
        s.record_us = median(record_us);
        s.built = Counting::built - before;
    }

    static constexpr uint32_t lengths = 33;
    Runtime& runtime_;
    const VkattnProblem& problem_;
    bool bshd_;
    const StartupWork& work_;
    RuntimeHandles h_ = runtime_.handles();
    Functions vk_{h_};
};

}  // namespace

Startup measure_startup(Runtime& runtime, const VkattnProblem& problem, bool bshd, const StartupWork& work) {
    return Measurement(runtime, problem, bshd, work).run();
}

}  // namespace vkattn::tools
