// Labels and names as a layer sees them: behind each dispatch stands a wrong call, and the validation layer's message
// says under which labels it is, and what the pipeline is called. Nothing of it is executed.
#include <fmt/format.h>

#include "api_calls.hpp"
#include "cases.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// Stands between the library and Vulkan; Vulkan's functions have no room for a pointer.
struct Between {
    static inline PFN_vkGetInstanceProcAddr get = nullptr;
    static inline PFN_vkGetDeviceProcAddr device_get = nullptr;
    static inline PFN_vkCmdBindPipeline bind = nullptr;
    static inline PFN_vkCmdDispatch dispatch = nullptr;
    static inline VkPipeline bound = VK_NULL_HANDLE;
    static inline std::string missing;  // a function that the instance does not have
    static inline std::vector<std::string> seen;

    static void VKAPI_CALL note_bind(VkCommandBuffer c, VkPipelineBindPoint point, VkPipeline pipeline) {
        bound = pipeline;
        bind(c, point, pipeline);
    }
    static void VKAPI_CALL note_dispatch(VkCommandBuffer c, uint32_t x, uint32_t y, uint32_t z) {
        dispatch(c, x, y, z);
        bind(c, VK_PIPELINE_BIND_POINT_GRAPHICS, bound);  // it is a compute pipeline
    }
    // Keeps what stands behind a function's name, and gives what stands for it.
    template <class F>
    static PFN_vkVoidFunction replace(PFN_vkVoidFunction found, F& real, F own) {
        real = reinterpret_cast<F>(found);
        return reinterpret_cast<PFN_vkVoidFunction>(own);
    }
    static PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device, const char* name) {
        const PFN_vkVoidFunction real = device_get(device, name);
        if (std::string(name) == "vkCmdBindPipeline") return replace(real, bind, &note_bind);
        return std::string(name) == "vkCmdDispatch" ? replace(real, dispatch, &note_dispatch) : real;
    }
    static PFN_vkVoidFunction VKAPI_CALL instance_function(VkInstance instance, const char* name) {
        if (name == missing) return nullptr;
        const PFN_vkVoidFunction real = get(instance, name);
        return std::string(name) == "vkGetDeviceProcAddr" ? replace(real, device_get, &device_function)
                                                          : real;
    }
    // The layer does not pass on a call to which this answers that it is wrong.
    static VkBool32 VKAPI_CALL note_message(VkDebugUtilsMessageSeverityFlagBitsEXT,
                                            VkDebugUtilsMessageTypeFlagsEXT,
                                            const VkDebugUtilsMessengerCallbackDataEXT* data, void*) {
        if (std::string(data->pMessageIdName) != "VUID-vkCmdBindPipeline-pipelineBindPoint-00779")
            return VK_TRUE;
        std::string line;
        for (uint32_t i = data->cmdBufLabelCount; i-- > 0;)  // the innermost comes first
            line += fmt::format("{} | ", data->pCmdBufLabels[i].pLabelName);
        for (uint32_t i = 0; i < data->objectCount; i++)
            if (data->pObjects[i].objectType == VK_OBJECT_TYPE_PIPELINE)
                line += data->pObjects[i].pObjectName != nullptr ? data->pObjects[i].pObjectName : "no name";
        seen.push_back(line);
        return VK_TRUE;
    }
};

// A context whose dispatches the layer tells of.
struct Labelled : OnDevice {
    Labelled() : all(device) {
        Between::get = all.info.get_instance_proc_addr;
        all.info.get_instance_proc_addr = &Between::instance_function;
        all.info.debug_utils = 1;
    }
    ~Labelled() { Between::missing.clear(); }
    template <class F>
    F function(const char* name) const {
        return reinterpret_cast<F>(Between::get(all.info.instance, name));
    }
    // Returns what the layer sees of a recording.
    std::vector<std::string> see(const std::function<void(VkCommandBuffer)>& record) {
        VkDebugUtilsMessengerCreateInfoEXT info{};
        info.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT;
        info.messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
        info.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT;
        info.pfnUserCallback = &Between::note_message;
        VkDebugUtilsMessengerEXT messenger = VK_NULL_HANDLE;
        require(function<PFN_vkCreateDebugUtilsMessengerEXT>("vkCreateDebugUtilsMessengerEXT")(
                    all.info.instance, &info, nullptr, &messenger),
                "vkCreateDebugUtilsMessengerEXT");
        Recorder recorder(device);
        record(recorder.begin());
        function<PFN_vkDestroyDebugUtilsMessengerEXT>("vkDestroyDebugUtilsMessengerEXT")(all.info.instance,
                                                                                         messenger, nullptr);
        CHECK(device.take_messages().size() >= Between::seen.size());
        return std::exchange(Between::seen, {});
    }
    AllFeatures all;
};

// Checks the begin of each line, and prints all.
void check_lines(const std::vector<std::string>& lines, const std::vector<std::string>& begins) {
    for (const std::string& line : lines) MESSAGE(line);
    REQUIRE(lines.size() == begins.size());
    for (size_t i = 0; i < lines.size(); i++) CHECK(lines[i].starts_with(begins[i]));
}

constexpr VkDeviceAddress place = uint64_t{1}
                                  << 50;  // tensors lie multiples of it apart, and nobody reads them

}  // namespace

TEST_CASE_FIXTURE(Labelled, "a layer sees under which labels each dispatch stands, and its pipeline's name") {
    if (!device.validated()) return skip("labels: the validation layer is not installed");
    const Context context(all.info);
    const Case c = parse_case("b=2 hq=8 hkv=2 sq=3 skv=799 d=40 causal splits=3 kernel=tiles");
    const Plan plan(context, c.problem, c.options());
    const Buffer scratch = runtime.allocate(plan.scratch().size_bytes);
    VkattnForwardArgs args = forward_args();
    args.query = args.key = place;
    args.value = 2 * place;
    args.out = 3 * place;
    args.scratch_buffer = scratch.handle();
    args.scratch_address = scratch.address();
    const std::string of_plan = "vkattn forward f32 b2 h8/2 3x799 d40 causal | ";
    check_lines(see([&](VkCommandBuffer to) { plan.cmd_forward(to, args); }),
                {of_plan + "forward_tiles_f32 | vkattn forward_tiles_f32",
                 of_plan + "combine_f32 | vkattn combine_f32"});

    VkattnCombine merge = combine();
    merge.num_parts = 3;
    merge.seqlen_q = 5;
    merge.head_dim_v = 8;
    const Plan merging(context, merge);
    VkattnCombineArgs parts = combine_args();
    parts.parts = args.key, parts.parts_lse = args.value, parts.out = args.out;
    check_lines(see([&](VkCommandBuffer to) { merging.cmd_combine(to, parts); }),
                {"vkattn combine f32 3 parts b1 h1 5 rows d8 | combine_f32 | vkattn combine_f32"});
    const auto probe = see([&](VkCommandBuffer to) { context.record_probe(to, place); });
    CHECK(probe.empty() == (context.probe_size() == 0));
    check_lines(probe, {probe.size(), "vkattn probe of the matrix units | probe_matrix_"});

    // Without the extension there is neither.
    all.info.debug_utils = 0;
    const Context plain(all.info);
    const Plan unlabelled(plain, parse_case("s=5").problem);
    check_lines(see([&](VkCommandBuffer to) { unlabelled.cmd_forward(to, args); }), {"no name"});
}

TEST_CASE_FIXTURE(Labelled,
                  "an instance without debug utils is noticed where a context is told that it has them") {
    for (const char* missing : {"vkCmdBeginDebugUtilsLabelEXT", "vkSetDebugUtilsObjectNameEXT"}) {
        Between::missing = missing;
        const Seen seen = make(vkattn_context_destroy, vkattn_context_create, &all.info);
        check_invalid(seen, "info.debug_utils");
        CHECK(std::string(seen.error.message).find(missing) != std::string::npos);
    }
}
