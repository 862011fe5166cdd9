// A context from what its application has enabled, and what it is told at its start.
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "caps.hpp"
#include "context.hpp"
#include "device_tests/kept_text.hpp"
#include "device_tests/probe.hpp"
#include "plan/matrix.hpp"
#include "plan/quirks.hpp"
#include "self_test.hpp"

namespace vkattn::core {
namespace {

Result<bool> check_info(const VkattnContextInfo& info) {
    if (info.get_instance_proc_addr == nullptr) return invalid("info.get_instance_proc_addr", "is null");
    if (info.instance == VK_NULL_HANDLE) return invalid("info.instance", "is null");
    if (info.physical_device == VK_NULL_HANDLE) return invalid("info.physical_device", "is null");
    if (info.device == VK_NULL_HANDLE) return invalid("info.device", "is null");
    if (info.api_version == 0)
        return invalid("info.api_version",
                       "is 0: it is VkApplicationInfo::apiVersion of the instance, at least 1.2");
    if (info.enabled_extension_count != 0 && info.enabled_extensions == nullptr)
        return invalid("info.enabled_extensions", "is null, but its count is not 0");
    return true;
}

// Begins a context with what earlier ones have found, and says so where it is of no use. A file that is empty has
// nothing to say.
void take_kept_texts(VkattnContext& context, const VkattnContextInfo& info) {
    const auto tell_unused = [&](const char* name, const char* kind, std::string_view text) {
        if (text.empty()) return;
        context.messages.tell(VKATTN_MESSAGE_WARNING, [&] {
            return fmt::format("info.{} is not used: it {}", name,
                               why_unused(kind, context.caps, vkattn_version(), text));
        });
    };
    if (info.probe_results != nullptr) {
        const std::string_view text(static_cast<const char*>(info.probe_results), info.probe_results_bytes);
        context.probed = note_probe_text(context.caps, text, vkattn_version());
        if (!context.probed) tell_unused("probe_results", "probe", text);
    }
    if (info.self_test_verdicts != nullptr) {
        const std::string_view text = info.self_test_verdicts;
        context.caps.verdicts = verdicts_of(context.caps, text, vkattn_version());
        if (context.messages.callback != nullptr && verdicts_text(context.caps, vkattn_version()) != text)
            tell_unused("self_test_verdicts", "self-test", text);
    }
    tell_failures(context, {});
}

// Says what is special about the device.
void tell_device(const VkattnContext& context) {
    for (const Quirk& quirk : quirks)
        if (quirk.is_active(context.caps))
            context.messages.tell(VKATTN_MESSAGE_INFO, [&] {
                return fmt::format("a workaround for this driver is active: {}", quirk.effect);
            });
    context.messages.tell(VKATTN_MESSAGE_INFO, [&] {
        const std::optional<Failure> why = why_no_matrices(context.caps, "");
        if (why) return "no kernel on matrix units is planned: " + why->message;
        return std::string(
            context.caps.type == DeviceType::cpu
                ? "kernels on matrix units are planned by name only, because this device is a CPU"
                : "kernels on matrix units are planned where they serve the problem");
    });
}

}  // namespace

Result<std::unique_ptr<VkattnContext>> make_context(const VkattnContextInfo& info) {
    if (auto ok = check_info(info); !ok) return ok.failure();
    const auto instance = load_instance_functions(info.get_instance_proc_addr, info.instance);
    if (!instance) return instance.failure();
    auto device = load_device_functions(*instance, info.device);
    if (!device) return device.failure();
    if (info.debug_utils != 0)
        if (auto ok = load_debug_functions(info.get_instance_proc_addr, info.instance, *device); !ok)
            return ok.failure();
    const DeviceCaps caps = query_caps(*instance, info.physical_device, info.api_version, info.features);
    if (const std::string why = refuse_device(caps); !why.empty()) return unsupported("info", why);
    auto context = std::make_unique<VkattnContext>(*device, caps, info.device, info.pipeline_cache,
                                                   Messages{info.message, info.message_user});
    if (const VkResult r = context->pipelines.create_layout(); r != VK_SUCCESS)
        return Failure{VKATTN_DEVICE_ERROR, "", "vkCreatePipelineLayout failed", static_cast<int32_t>(r)};
    tell_device(*context);
    take_kept_texts(*context, info);
    return context;
}

}  // namespace vkattn::core
