// Stands between the library and Vulkan: counts what is created, writes down what is recorded, and fails pipeline
// creation on request. Works through VkattnContextInfo::get_instance_proc_addr, like any layer of an embedder.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "device.hpp"
#include "shared/forward.h"

namespace vkattn::test {

// One recorded call of a command buffer.
struct Command {
    enum class Kind { bind, push, dispatch, barrier, update } kind;
    shared::ForwardPush push{};            // what was pushed last
    VkPipeline pipeline = VK_NULL_HANDLE;  // what was bound last
    std::array<uint32_t, 3> groups{};
    VkPipelineStageFlags from = 0, to = 0;  // barrier
    VkAccessFlags written = 0, used = 0;
    VkBuffer buffer = VK_NULL_HANDLE;  // update
    VkDeviceSize offset = 0, size = 0;
};

// One in a process: Vulkan's functions have no room for a pointer of ours.
class Interposer {
  public:
    static Interposer& get();
    Interposer(const Interposer&) = delete;

    // A new context of the first device that goes through this object.
    Context context() const;

    // Asked before each pipeline with the name of its variant; anything but VK_SUCCESS makes the creation fail.
    std::function<VkResult(std::string_view variant)> before_pipeline;
    // Pipelines that pass are made up, and what is recorded reaches no driver: for tests that run nothing, on devices
    // that build slowly.
    bool pretend = false;
    // Contexts made while this is set believe that the device has no larger grids.
    std::optional<std::array<uint32_t, 3>> largest_grid;
    // And no smaller allocations than this.
    std::optional<uint64_t> largest_allocation;

    int modules_created() const { return count(modules_); }
    int pipelines_asked_for() const { return count(pipelines_); }
    int objects_alive() const { return count(alive_); }  // modules, pipelines, layouts
    std::vector<Command> take_commands();
    void reset();  // to looking on only, with nothing noted

    struct Hooks;  // the functions that Vulkan's are replaced by

  private:
    explicit Interposer(Device& device) : device_(device) {}
    int count(const int& value) const {
        const std::lock_guard lock(mutex_);
        return value;
    }

    Device& device_;
    mutable std::mutex mutex_;
    int modules_ = 0, pipelines_ = 0, alive_ = 0;
    std::map<VkShaderModule, std::string> variants_;
    std::set<VkPipeline> pretended_;
    std::vector<Command> commands_;
    shared::ForwardPush pushed_{};
    VkPipeline bound_ = VK_NULL_HANDLE;
};

// Some devices build pipelines slowly, so tests share a context of the first device where they can.
Context& shared_context();

// Fixture of the tests that look on.
struct Recorded : OnDevice {
    Recorded() { between.reset(); }
    ~Recorded() { between.reset(); }
    Interposer& between = Interposer::get();
    Context& context = shared_context();
};

}  // namespace vkattn::test
