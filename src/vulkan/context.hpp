// A device as the library sees it: functions, caps, and the pipelines built so far. The C ABI (api.cpp) makes one for
// each VkattnContext. Everything here may be used from many threads, except for what its comment excludes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "device_tests/self_test.hpp"
#include "functions.hpp"
#include "messages.hpp"
#include "pipeline_constants.hpp"
#include "plan/plan.hpp"

namespace vkattn::core {

// Compute pipelines by what they are built from. It is safe to use from many threads: a thread waits for the driver's
// compiler only if it wants a pipeline that another thread is building. Each pipeline is built once.
class Pipelines {
  public:
    Pipelines(const DeviceFunctions& vk, const DeviceCaps& caps, VkDevice device, VkPipelineCache cache);
    ~Pipelines();
    Pipelines(const Pipelines&) = delete;
    Pipelines& operator=(const Pipelines&) = delete;

    VkResult create_layout();
    VkPipelineLayout layout() const { return layout_; }
    // Once the driver has said that the device is lost, this fails without asking it.
    Result<VkPipeline> get(const Pipeline& pipeline);
    // Keeps the words of a variant, from which pipelines of it are built.
    void keep(const Module& variant, Spirv words) { constants_.keep(variant, std::move(words)); }
    size_t size() const;

  private:
    // A pipeline that is built or that a thread is building. A failure leaves the map, so that a later get() tries
    // again.
    struct Entry {
        bool ended = false;                        // the building thread is done, and `result` stays as it is
        std::optional<Result<VkPipeline>> result;  // empty if the building ended with an exception
    };
    // Ends an entry, however its building ends.
    struct Ending {
        Pipelines& all;
        const PipelineKey& key;
        Entry& entry;
        ~Ending();
    };

    Result<VkPipeline> build(const PipelineKey& key);
    void set_name(const PipelineKey& key, VkPipeline pipeline) const;

    const DeviceFunctions& vk_;
    const DeviceCaps& caps_;
    VkDevice device_;
    VkPipelineCache cache_;
    VkPipelineLayout layout_ = VK_NULL_HANDLE;
    mutable std::mutex mutex_;  // guards entries_ and their `ended`; never held while a pipeline is built
    std::condition_variable ended_;
    std::atomic<bool> lost_ = false;
    std::map<PipelineKey, std::shared_ptr<Entry>> entries_;
    PipelineConstants constants_;
};

}  // namespace vkattn::core

struct VkattnContext {
    VkattnContext(const vkattn::core::DeviceFunctions& functions, const vkattn::core::DeviceCaps& device_caps,
                  VkDevice device, VkPipelineCache cache, const vkattn::core::Messages& told)
        : vk(functions),
          handle(device),
          messages(told),
          caps(device_caps),
          pipelines(vk, caps, device, cache) {}

    const vkattn::core::DeviceFunctions vk;
    const VkDevice handle;
    const vkattn::core::Messages messages;
    vkattn::core::DeviceCaps caps;  // changed by vkattn_context_probed and vkattn_context_self_tested only
    bool probed = false;            // caps has what a probe has found; changed by the former only
    // Those of vkattn_cmd_self_test, until vkattn_context_self_tested.
    std::vector<vkattn::core::PlannedTest> recorded_tests;
    vkattn::core::Pipelines pipelines;
    std::mutex mutex;  // guards what follows
    // Tuning rows whose pipelines this driver could not build.
    std::map<vkattn::core::RowKind, std::vector<std::string>> rejected_rows;
    // Modules of the application by the name of their variant. Its number is their Module::variant.
    struct Variant {
        uint32_t number;
        std::vector<vkattn::core::Module> modules;
    };
    std::map<std::string, Variant> variants;
};

struct VkattnPlan {
    VkattnContext* context;
    vkattn::core::Plan plan;
    std::vector<VkPipeline>
        pipelines;      // of plan.pipelines; null where no dispatch uses one. Owned by the context
    std::string label;  // of its recordings; "" where the context has no labels
};

namespace vkattn::core {

// Checks `info`, whose struct has the size of today, and makes a context of it. Tells the application what is special
// about its device, and which kept texts are not used.
Result<std::unique_ptr<VkattnContext>> make_context(const VkattnContextInfo& info);

// Checks a module of the application, whose struct has the size of today, and adds it.
Result<bool> add_module(VkattnContext& context, const VkattnModule& given);

}  // namespace vkattn::core
