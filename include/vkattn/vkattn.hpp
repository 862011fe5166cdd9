// vkattn in C++20: owning handles and exceptions over the C ABI of vkattn.h, where the contract stands.
// Header-only.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "vkattn/vkattn.h"

namespace vkattn {

// Any status but VKATTN_OK. what() is "field: message".
class Error : public std::runtime_error {
  public:
    explicit Error(const VkattnError& error)
        : std::runtime_error(error.field[0] != 0 ? std::string(error.field) + ": " + error.message
                                                 : error.message),
          error_(error) {}

    VkattnStatus status() const { return error_.status; }
    VkResult vk_result() const { return static_cast<VkResult>(error_.vk_result); }
    std::string field() const { return error_.field; }
    std::string message() const { return error_.message; }

  private:
    VkattnError error_;
};

namespace detail {

template <class Function, class... Args>
void call(Function function, Args... args) {
    VkattnError error;
    if (function(args..., &error) != VKATTN_OK) throw Error(error);
}

// Returns the text that vkattn_plan_describe or a function like it gives for an object.
template <class T>
std::string text_of(VkattnStatus (*function)(const T*, char*, size_t, size_t*, VkattnError*),
                    const T* object) {
    size_t length = 0;
    call(function, object, nullptr, size_t{0}, &length);
    std::string text(length + 1, '\0');
    call(function, object, text.data(), text.size(), &length);
    text.resize(length);
    return text;
}

// A handle that is destroyed once; movable, not copyable.
template <class T, void (*Destroy)(T*)>
class Handle {
  public:
    Handle() = default;
    explicit Handle(T* handle) : handle_(handle) {}
    Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Handle& operator=(Handle&& other) noexcept {
        if (this != &other) {
            Destroy(handle_);
            handle_ = std::exchange(other.handle_, nullptr);
        }
        return *this;
    }
    ~Handle() { Destroy(handle_); }
    T* get() const { return handle_; }

  private:
    T* handle_ = nullptr;
};

}  // namespace detail

// The structs of the C ABI with their defaults set.
inline VkattnProblem problem() {
    VkattnProblem p;
    vkattn_problem_init(&p);
    return p;
}
inline VkattnOptions options() {
    VkattnOptions o;
    vkattn_options_init(&o);
    return o;
}
inline VkattnContextInfo context_info() {
    VkattnContextInfo i;
    vkattn_context_info_init(&i);
    return i;
}
inline VkattnModule module_info() {
    VkattnModule m;
    vkattn_module_init(&m);
    return m;
}
inline VkattnForwardArgs forward_args() {
    VkattnForwardArgs a;
    vkattn_forward_args_init(&a);
    return a;
}

inline VkattnCombine combine() {
    VkattnCombine c;
    vkattn_combine_init(&c);
    return c;
}
inline VkattnCombineArgs combine_args() {
    VkattnCombineArgs a;
    vkattn_combine_args_init(&a);
    return a;
}

inline VkattnBackward backward() {
    VkattnBackward b;
    vkattn_backward_init(&b);
    return b;
}
inline VkattnBackwardArgs backward_args() {
    VkattnBackwardArgs a;
    vkattn_backward_args_init(&a);
    return a;
}

// What to enable before vkCreateDevice; see vkattn_requirements_create. Throws Error.
class Requirements {
  public:
    Requirements(PFN_vkGetInstanceProcAddr get, VkInstance instance, VkPhysicalDevice device) {
        VkattnRequirements* made = nullptr;
        detail::call(vkattn_requirements_create, get, instance, device, &made);
        handle_ = Handle(made);
    }
    uint32_t extensions(const char* const** names) const {
        return vkattn_requirements_extensions(handle_.get(), names);
    }
    const VkPhysicalDeviceFeatures2* features() const { return vkattn_requirements_features(handle_.get()); }
    // See vkattn_requirements_merge. Throws Error.
    void merge(void* chain) const { detail::call(vkattn_requirements_merge, handle_.get(), chain); }

  private:
    using Handle = detail::Handle<VkattnRequirements, vkattn_requirements_destroy>;
    Handle handle_;
};

// See vkattn_context_create. Throws Error.
class Context {
  public:
    Context() = default;
    explicit Context(const VkattnContextInfo& info) {
        VkattnContext* made = nullptr;
        detail::call(vkattn_context_create, &info, &made);
        handle_ = Handle(made);
    }
    // See vkattn_context_add_module. Throws Error.
    void add_module(const VkattnModule& module) const {
        detail::call(vkattn_context_add_module, handle_.get(), &module);
    }
    // Gives on_message what the library would otherwise do in silence, instead of info.message, whose rules hold here:
    // it may be called on several threads at once, and what it throws is dropped.
    using OnMessage = std::function<void(VkattnMessageLevel level, const char* text)>;
    Context(VkattnContextInfo info, OnMessage on_message)
        : on_message_(std::make_unique<OnMessage>(std::move(on_message))) {
        if (*on_message_) {
            info.message_user = on_message_.get();
            info.message = [](void* user, VkattnMessageLevel level, const char* text) {
                (*static_cast<OnMessage*>(user))(level, text);
            };
        }
        VkattnContext* made = nullptr;
        detail::call(vkattn_context_create, &info, &made);
        handle_ = Handle(made);
    }
    VkattnContext* get() const { return handle_.get(); }

    // See vkattn_probe_size. Throw Error.
    uint64_t probe_size() const { return vkattn_probe_size(get()); }
    void record_probe(VkCommandBuffer commands, VkDeviceAddress results) const {
        detail::call(vkattn_cmd_probe, commands, get(), results);
    }
    void probed(const void* results, uint64_t size_bytes) const {
        detail::call(vkattn_context_probed, get(), results, size_bytes);
    }
    std::string probe_results() const {
        return detail::text_of(vkattn_probe_results, static_cast<const VkattnContext*>(get()));
    }
    // See vkattn_self_test_size. Throw Error.
    uint64_t self_test_size() const { return vkattn_self_test_size(get()); }
    uint32_t self_test_count() const { return vkattn_self_test_count(get()); }
    void build_self_test(uint32_t index) const { detail::call(vkattn_self_test_build, get(), index); }
    void record_self_test(VkCommandBuffer commands, VkBuffer buffer, VkDeviceSize offset,
                          VkDeviceAddress address) const {
        detail::call(vkattn_cmd_self_test, commands, get(), buffer, offset, address);
    }
    void self_tested(const void* results, uint64_t size_bytes) const {
        detail::call(vkattn_context_self_tested, get(), results, size_bytes);
    }
    std::string self_test_verdicts() const {
        return detail::text_of(vkattn_self_test_verdicts, static_cast<const VkattnContext*>(get()));
    }

  private:
    using Handle = detail::Handle<VkattnContext, vkattn_context_destroy>;
    std::unique_ptr<OnMessage> on_message_;  // outlives the context
    Handle handle_;
};

// See vkattn_plan_create. Throws Error.
class Plan {
  public:
    Plan() = default;
    Plan(const Context& context, const VkattnProblem& problem,
         const VkattnOptions& options = vkattn::options())
        : Plan(context.get(), problem, options) {}
    Plan(VkattnContext* context, const VkattnProblem& problem,
         const VkattnOptions& options = vkattn::options()) {
        VkattnPlan* made = nullptr;
        detail::call(vkattn_plan_create, context, &problem, &options, &made);
        handle_ = Handle(made);
    }

    // Gradients; see vkattn_backward_create.
    Plan(const Context& context, const VkattnProblem& problem, const VkattnBackward& backward,
         const VkattnOptions& options = vkattn::options())
        : Plan(context.get(), problem, backward, options) {}
    Plan(VkattnContext* context, const VkattnProblem& problem, const VkattnBackward& backward,
         const VkattnOptions& options = vkattn::options()) {
        VkattnPlan* made = nullptr;
        detail::call(vkattn_backward_create, context, &problem, &backward, &options, &made);
        handle_ = Handle(made);
    }

    // Merges partial outputs; see vkattn_combine_create.
    Plan(const Context& context, const VkattnCombine& combine) : Plan(context.get(), combine) {}
    Plan(VkattnContext* context, const VkattnCombine& combine) {
        VkattnPlan* made = nullptr;
        detail::call(vkattn_combine_create, context, &combine, &made);
        handle_ = Handle(made);
    }

    // Returns the plan that makes the problem's block map of its mask; see vkattn_block_map_create.
    static Plan of_block_map(const Context& context, const VkattnProblem& problem) {
        return of_block_map(context.get(), problem);
    }
    static Plan of_block_map(VkattnContext* context, const VkattnProblem& problem) {
        VkattnPlan* made = nullptr;
        detail::call(vkattn_block_map_create, context, &problem, &made);
        Plan plan;
        plan.handle_ = Handle(made);
        return plan;
    }

    VkattnPlan* get() const { return handle_.get(); }
    uint32_t segments() const { return vkattn_plan_segments(handle_.get()); }

    VkattnScratch scratch() const {
        VkattnScratch s;
        vkattn_scratch_init(&s);
        detail::call(vkattn_plan_scratch, handle_.get(), &s);
        return s;
    }

    VkattnPlanInfo info() const {
        VkattnPlanInfo i;
        vkattn_plan_info_init(&i);
        detail::call(vkattn_plan_info, handle_.get(), &i);
        return i;
    }

    // JSON; see vkattn_plan_describe.
    std::string describe() const {
        return detail::text_of(vkattn_plan_describe, static_cast<const VkattnPlan*>(handle_.get()));
    }

    // Records only; see vkattn_cmd_forward.
    void cmd_forward(VkCommandBuffer commands, const VkattnForwardArgs& args) const {
        detail::call(vkattn_cmd_forward, commands, handle_.get(), &args);
    }
    void cmd_forward(VkCommandBuffer commands, const VkattnForwardArgs& args, uint32_t first,
                     uint32_t count) const {
        detail::call(vkattn_cmd_forward_range, commands, handle_.get(), &args, first, count);
    }
    void cmd_backward(VkCommandBuffer commands, const VkattnBackwardArgs& args) const {
        detail::call(vkattn_cmd_backward, commands, handle_.get(), &args);
    }
    void cmd_backward(VkCommandBuffer commands, const VkattnBackwardArgs& args, uint32_t first,
                      uint32_t count) const {
        detail::call(vkattn_cmd_backward_range, commands, handle_.get(), &args, first, count);
    }
    void cmd_combine(VkCommandBuffer commands, const VkattnCombineArgs& args) const {
        detail::call(vkattn_cmd_combine, commands, handle_.get(), &args);
    }
    void cmd_block_map(VkCommandBuffer commands, const VkattnForwardArgs& args) const {
        detail::call(vkattn_cmd_block_map, commands, handle_.get(), &args);
    }

  private:
    using Handle = detail::Handle<VkattnPlan, vkattn_plan_destroy>;
    Handle handle_;
};

// What a Plan of these would be, without its pipelines; see vkattn_plan_check. They throw Error where there would be no
// plan; those for whom that is no exception call the C functions.
inline VkattnPlanInfo check(VkattnContext* context, const VkattnProblem& problem,
                            const VkattnOptions& options = vkattn::options()) {
    VkattnPlanInfo info;
    vkattn_plan_info_init(&info);
    detail::call(vkattn_plan_check, context, &problem, &options, &info);
    return info;
}
inline VkattnPlanInfo check(VkattnContext* context, const VkattnProblem& problem,
                            const VkattnBackward& backward,
                            const VkattnOptions& options = vkattn::options()) {
    VkattnPlanInfo info;
    vkattn_plan_info_init(&info);
    detail::call(vkattn_backward_check, context, &problem, &backward, &options, &info);
    return info;
}
inline VkattnPlanInfo check(VkattnContext* context, const VkattnCombine& combine) {
    VkattnPlanInfo info;
    vkattn_plan_info_init(&info);
    detail::call(vkattn_combine_check, context, &combine, &info);
    return info;
}

inline VkattnPlanInfo check_block_map(VkattnContext* context, const VkattnProblem& problem) {
    VkattnPlanInfo info;
    vkattn_plan_info_init(&info);
    detail::call(vkattn_block_map_check, context, &problem, &info);
    return info;
}

}  // namespace vkattn
