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

#include "fixture.hpp"
#include "plan/interfaces.hpp"

namespace vkattn::test {

// One recorded call of a command buffer.
struct Command {
    enum class Kind { bind, push, dispatch, barrier, update } kind;
    explicit Command(Kind k) : kind(k) {}

    core::PushBytes push{};                // what was pushed last
    VkPipeline pipeline = VK_NULL_HANDLE;  // what was bound last,
    std::string module;                    // and the name of its module
    std::array<uint32_t, 3> groups{};
    VkPipelineStageFlags from = 0, to = 0;  // barrier
    VkAccessFlags written = 0, used = 0;
    VkBuffer buffer = VK_NULL_HANDLE;  // update
    VkDeviceSize offset = 0, size = 0;
};

// The value of a field of what was pushed before a command, by its name in the interface of the kernel that was bound;
// fails if the kernel has none of this name.
uint64_t pushed(const Command& command, std::string_view field);
bool has_field(const Command& command, std::string_view field);

// A barrier between dispatches.
bool guards_compute(const Command& command);

// One in a process: Vulkan's functions have no room for a pointer of ours.
class Interposer {
  public:
    static Interposer& get();
    Interposer(const Interposer&) = delete;

    // A new context of the first device that goes through this object, as those do that are given the function.
    Context context(const Context::OnMessage& on_message = nullptr) const;
    static PFN_vkGetInstanceProcAddr get_instance_proc_addr();

    // Asked before each pipeline with the name of its module; anything but VK_SUCCESS makes the creation fail.
    std::function<VkResult(std::string_view module)> before_pipeline;
    // Pipelines that pass are made up, and what is recorded reaches no driver: for tests that run nothing, on devices
    // that build slowly.
    bool pretend = false;
    // Contexts made while this is set believe that the device has no larger grids.
    std::optional<std::array<uint32_t, 3>> largest_grid;
    // And no smaller allocations than this.
    std::optional<uint64_t> largest_allocation;
    // This may change what the driver says of the device's properties.
    std::function<void(VkPhysicalDeviceProperties2&)> change_properties;
    // Contexts made while this is set have all features that the library uses.
    bool all_features = false;
    // Contexts made while this is set believe that the device has 16-bit dot products of both types, enabled with all
    // that it has. Where it has none, their modules reach the driver without them: see dot_emulation.hpp.
    bool dot_products = false;

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
    std::map<VkShaderModule, std::string> modules_of_shaders_;
    std::map<VkPipeline, std::string> modules_of_pipelines_;
    std::set<VkPipeline> pretended_;
    std::vector<Command> commands_;
    core::PushBytes pushed_{};
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
