/* vkattn: exact attention without the seqlen_q x seqlen_kv matrix, on any Vulkan 1.2 device.
 *
 * The contract of the library. The caller owns instance, device, queue, command buffers and all device memory;
 * the library validates a problem, plans it, and records dispatches. It never submits, never allocates device
 * memory, keeps no global state, never aborts, and throws nothing across this boundary.
 *
 *     problem -> vkattn_plan_create (validates, chooses the kernel, builds its pipelines)
 *             -> vkattn_plan_scratch (how much scratch the caller must bring)
 *             -> vkattn_cmd_forward (records; any number of times, from any thread)
 * and the same for its gradients: vkattn_backward_create, vkattn_plan_scratch, vkattn_cmd_backward.
 *
 * Tensors are device addresses with strides in elements. Semantics follow FlashAttention (Dao et al. 2022,
 * arXiv:2205.14135; Dao 2023, arXiv:2307.08691):
 *
 *     s = softmax_scale * (q . k);  if softcap: s = softcap * tanh(s / softcap);  mask;  out = softmax(s) . v
 *     lse = log(sum(exp(s))), natural logarithm
 *
 * Scores are computed in float32, so |s| must stay below 5e37.
 *
 * Query head h reads kv head h / (num_heads_q / num_heads_kv). Arithmetic is float32 whatever the storage type, but for
 * the operands of products on matrix units, which are 16-bit: those of 16-bit problems, and of float32 ones if
 * options.precision asks for it; and for those of 16-bit dot products, which only 16-bit problems have.
 * The same device, driver, plan and input give the same bits.
 *
 * Thread safety: contexts and plans may be used from many threads at once. Both must outlive the command buffers
 * that use them. A command buffer is externally synchronised, as Vulkan has it. */
#ifndef VKATTN_H
#define VKATTN_H

#include <stddef.h>
#include <stdint.h>

#include <vulkan/vulkan_core.h>

#include "vkattn/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* VKATTN_SHARED: the library is a DLL. VKATTN_BUILDING: this is the library. */
#if defined(_WIN32) && defined(VKATTN_BUILDING)
#define VKATTN_API __declspec(dllexport)
#elif defined(_WIN32) && defined(VKATTN_SHARED)
#define VKATTN_API __declspec(dllimport)
#elif defined(__GNUC__)
#define VKATTN_API __attribute__((visibility("default")))
#else
#define VKATTN_API
#endif

#define VKATTN_VERSION_MAJOR 0
#define VKATTN_VERSION_MINOR 1
#define VKATTN_VERSION_PATCH 0

/* How much a message of a context matters; see VkattnContextInfo::message. */
typedef enum VkattnMessageLevel {
    /* This is for a log: a workaround for the driver is active, or matrix units are not used, and why. */
    VKATTN_MESSAGE_INFO = 0,
    /* Something that was given or planned is not used: a text that was kept from an earlier start, a kernel that has
     * failed the self-test, a tuning row or a probe that the driver cannot build. It costs speed, no result. */
    VKATTN_MESSAGE_WARNING = 1,
    VKATTN_MESSAGE_LEVEL_MAX_ENUM = 0x7fffffff
} VkattnMessageLevel;

/* What the caller enabled on its VkDevice, which may be less than what the device supports. */
typedef struct VkattnContextInfo {
    size_t struct_size;
    PFN_vkGetInstanceProcAddr get_instance_proc_addr;
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    uint32_t api_version; /* the instance's VkApplicationInfo::apiVersion; at least 1.2 */
    uint32_t enabled_extension_count;
    const char* const* enabled_extensions; /* of the device; this version decides by `features` alone */
    /* The chain given to vkCreateDevice. It may begin with any struct, then cast to this type. Null: just
     * bufferDeviceAddress. It is read by vkattn_context_create only. */
    const VkPhysicalDeviceFeatures2* features;
    /* May be null; must outlive the context. Threads that create plans use it at once, so it must not be of
     * VK_PIPELINE_CACHE_CREATE_EXTERNALLY_SYNCHRONIZED_BIT. */
    VkPipelineCache pipeline_cache;
    /* The text that vkattn_probe_results has given for an earlier context, and how long it is: the context begins
     * probed. The text names device, driver and version of vkattn. What another one of these has made, what was made
     * with other features, and what is damaged or cut short is not used and is no error: the context begins as without
     * it, and vkattn_probe_size is not 0. So an application can hand over whatever its file holds. Null: the default,
     * there is none. It is read by vkattn_context_create only. */
    const void* probe_results;
    uint64_t probe_results_bytes;
    /* Likewise the zero-ended text that vkattn_self_test_verdicts has given for an earlier context of the same
     * api_version and features: the context begins with these verdicts. Where the text is not used,
     * vkattn_self_test_size is not 0. */
    const char* self_test_verdicts;
    /* Boolean: VK_EXT_debug_utils is enabled on the instance, which the library cannot find out. Then captures can be
     * read: each recording stands under a label of its problem ("vkattn forward f16 b2 h8/2 4096x4096 d128 causal"),
     * each of its dispatches under one of its kernel ("forward_matrix_f16"), and each pipeline has the name of its
     * kernel and its constants, whose names shaders/interface explains. A range of a plan's segments has a label of its
     * own. Default false: none of these calls is made. */
    uint32_t debug_utils;
    /* Called with what the library would otherwise do in silence: one line of plain English without a newline, which
     * is valid during the call. Null, the default: nobody wants to hear it. It is called in functions that are given
     * this context or a plan of it, vkattn_context_create included, on the thread that calls them and before they
     * return, so by several threads at once if the application has them. It must not call vkattn with this context or
     * its plans, and must return: longjmp out of it is not allowed. What a callback in C++ throws is caught and
     * dropped, and the function goes on. */
    void (*message)(void* message_user, VkattnMessageLevel level, const char* text);
    void* message_user;
} VkattnContextInfo;

/* What to enable before vkCreateDevice. Owned by the object; valid until vkattn_requirements_destroy. */
typedef struct VkattnRequirements VkattnRequirements;
typedef struct VkattnContext VkattnContext;
typedef struct VkattnPlan VkattnPlan;

/* Buffers. Every address lies in a VkBuffer with the usage SHADER_DEVICE_ADDRESS, on memory that was allocated with
 * VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT. Tensors need no other usage: nothing is bound to a descriptor, so
 * STORAGE_BUFFER is not needed.
 *
 * Scratch is a range of such a buffer; null when the plan needs none. It needs no initial content, and what a recording
 * leaves there has no meaning. Consecutive recordings, of the same plan or of different ones, may share it if a
 * barrier from VKATTN_LAST_STAGES and VKATTN_LAST_ACCESS to VKATTN_FIRST_STAGES and VKATTN_FIRST_ACCESS stands
 * between them: the barrier that a recording needs anyway if it reads what the one before has written. Recordings
 * that may overlap (no barrier between them, or different queues) need scratch of their own. So do the segments of
 * one plan while they are spread over submissions: nobody else may use its scratch before the last one has ended. */

/* Aliasing. Inputs may share memory with each other in any way. An output shares no element with an input, with another
 * output or with scratch, and scratch none with anything (vkattn_cmd_combine may merge in place, see there). Elements
 * count, not ranges: tensors may interleave by their strides, as query, key and value of a packed QKV buffer do, and
 * their gradients in a packed dQKV buffer. Recording refuses arguments with INVALID_ARGUMENT where addresses and
 * strides prove that an element is shared, and never otherwise: what it cannot prove, or cannot see (two addresses of
 * one memory), is the caller's to avoid. */

/* Addresses of one forward. Null addresses are legal for empty tensors; lse may be null: it is not written then.
 * On matrix units, masks are fastest at a multiple of 16, with rows of a multiple of 16 bytes; rows of a tile are
 * computed twice where a key or value that the mask hides from all of them is not finite. */
typedef struct VkattnForwardArgs {
    size_t struct_size;
    VkDeviceAddress query;
    VkDeviceAddress key;
    VkDeviceAddress value;
    VkDeviceAddress out;
    VkDeviceAddress lse;
    VkDeviceAddress mask;            /* problem.mask, problem.mask_strides; a multiple of its element */
    VkDeviceAddress kv_lengths;      /* problem.kv_lengths: int32 (batch); clamped to 0 .. seqlen_kv */
    VkDeviceAddress query_offsets;   /* VKATTN_ALIGN_OFFSETS: int32 (batch) */
    VkBuffer scratch_buffer;         /* null, or what scratch_address is checked against */
    VkDeviceSize scratch_offset;     /* where scratch_address lies in scratch_buffer */
    VkDeviceAddress scratch_address; /* a multiple of the plan's scratch alignment */
    VkDeviceSize scratch_bytes;      /* how much scratch there is from there on, to be checked; 0: not told */
    VkDeviceAddress slopes;          /* problem.slopes: float32 (num_heads_q) or (batch, num_heads_q) */
    VkDeviceAddress sinks;           /* problem.sinks: float32 (num_heads_q) */
    VkDeviceAddress block_map;       /* problem.block_map: uint8, see there; vkattn_cmd_block_map writes it */
    VkDeviceAddress key_scales;      /* problem.key_scales: float32, see VkattnScales */
    VkDeviceAddress value_scales;    /* problem.value_scales */
} VkattnForwardArgs;

/* Addresses of one backward; see VkattnBackward. Null is legal for empty tensors. */
typedef struct VkattnBackwardArgs {
    size_t struct_size;
    VkDeviceAddress query;
    VkDeviceAddress key;
    VkDeviceAddress value;
    VkDeviceAddress out; /* as the forward wrote them */
    VkDeviceAddress lse;
    VkDeviceAddress dout;
    VkDeviceAddress dlse; /* backward.dlse */
    VkDeviceAddress dquery;
    VkDeviceAddress dkey;
    VkDeviceAddress dvalue;
    VkDeviceAddress dbias; /* backward.dbias; a multiple of its element */
    VkDeviceAddress mask;  /* these three as in VkattnForwardArgs */
    VkDeviceAddress kv_lengths;
    VkDeviceAddress query_offsets;
    VkBuffer scratch_buffer; /* these four, too */
    VkDeviceSize scratch_offset;
    VkDeviceAddress scratch_address;
    VkDeviceSize scratch_bytes;
    VkDeviceAddress slopes; /* these two as in VkattnForwardArgs */
    VkDeviceAddress sinks;
    VkDeviceAddress dsinks; /* backward.dsinks */
    VkDeviceAddress block_map;
} VkattnBackwardArgs;

/* A module that the application has compiled: a kernel of shaders/ that was changed, of the very version of the library
 * that it is given to. `vkattn info --modules` prints how each is compiled: docs/embedding.md has an example. */
typedef struct VkattnModule {
    size_t struct_size;
    const char* variant; /* what VkattnOptions::variant takes; one name may have many modules */
    const char*
        module; /* the module that it stands in for, "forward_tiles_f16"; modules for CPUs end in _rolled */
    const uint32_t* code; /* SPIR-V, which is read by the call only */
    size_t code_bytes;
} VkattnModule;

/* Addresses of one combine. Null is legal for empty tensors, for lse, which is not written then, and for sinks. */
typedef struct VkattnCombineArgs {
    size_t struct_size;
    VkDeviceAddress parts;
    VkDeviceAddress parts_lse;
    VkDeviceAddress out;
    VkDeviceAddress lse;
    VkDeviceAddress sinks; /* float32 (num_heads): as VkattnProblem::sinks; null: there are none */
} VkattnCombineArgs;

/* The stages and accesses of a recording's first reads and last writes, for the caller's own barriers:
 * inputs must be made visible to FIRST_STAGES/FIRST_ACCESS, results are written in LAST_STAGES by LAST_ACCESS. */
#define VKATTN_FIRST_STAGES (VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT)
#define VKATTN_FIRST_ACCESS (VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT)
#define VKATTN_LAST_STAGES (VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT)
#define VKATTN_LAST_ACCESS (VK_ACCESS_SHADER_WRITE_BIT)

VKATTN_API const char* vkattn_version(void);
VKATTN_API const char* vkattn_status_name(VkattnStatus status);

/* Each struct is set to its defaults by its init function. They are inline so that the caller's own idea of the
 * struct's size counts, should the library be newer: structs grow at their end only. Null is legal. A library reads the
 * structs of every version from 0.1 to its own; fields that an older caller's struct lacks have their defaults. */
#define VKATTN_INIT_FUNCTION(type, name)                            \
    VKATTN_API void name##_sized(type* object, size_t struct_size); \
    static inline void name(type* object) {                         \
        name##_sized(object, sizeof(type));                         \
    }
VKATTN_INIT_FUNCTION(VkattnProblem, vkattn_problem_init)
VKATTN_INIT_FUNCTION(VkattnOptions, vkattn_options_init)
VKATTN_INIT_FUNCTION(VkattnContextInfo, vkattn_context_info_init)
VKATTN_INIT_FUNCTION(VkattnModule, vkattn_module_init)
VKATTN_INIT_FUNCTION(VkattnForwardArgs, vkattn_forward_args_init)
VKATTN_INIT_FUNCTION(VkattnScratch, vkattn_scratch_init)
VKATTN_INIT_FUNCTION(VkattnPlanInfo, vkattn_plan_info_init)
VKATTN_INIT_FUNCTION(VkattnCombine, vkattn_combine_init)
VKATTN_INIT_FUNCTION(VkattnCombineArgs, vkattn_combine_args_init)
VKATTN_INIT_FUNCTION(VkattnBackward, vkattn_backward_init)
VKATTN_INIT_FUNCTION(VkattnBackwardArgs, vkattn_backward_args_init)

/* What vkattn would like enabled on this device, given what it supports: extensions, and a features chain that can be
 * passed as VkDeviceCreateInfo::pNext, or merged into the application's own by vkattn_requirements_merge. Only the
 * first feature is required, and what an application leaves out is done without:
 *
 *     feature                              Vulkan, extension                  what it brings
 *     bufferDeviceAddress                  1.2                                everything: it is required
 *     storageBuffer16BitAccess             1.1                                float16 and bfloat16 without packed
 *                                                                             words, which are slower
 *     these five, and the one above: all                                      float16 problems on matrix units, and
 *       shaderFloat16                      1.2                                float32 ones, see options.precision
 *       vulkanMemoryModel                  1.2
 *       vulkanMemoryModelDeviceScope       1.2
 *       computeFullSubgroups               1.3, VK_EXT_subgroup_size_control
 *       cooperativeMatrix                  VK_KHR_cooperative_matrix
 *     subgroupSizeControl                  1.3, VK_EXT_subgroup_size_control  matrix units where subgroups have several
 *                                                                             sizes (AMD, Intel)
 *     shaderBFloat16Type, shader-          VK_KHR_shader_bfloat16             bfloat16 problems on matrix units
 *       BFloat16CooperativeMatrix
 *     cooperativeMatrixReductions,         VK_NV_cooperative_matrix2          faster matrix kernels without a probe, on
 *       cooperativeMatrixConversions                                          instances of Vulkan 1.3 or later
 *     maintenance4                         1.3, VK_KHR_maintenance4           needed by these two
 *     shaderInt64                          1.0                                faster 16-bit forwards on matrix units
 *                                                                             that are laid out as AMD's are
 *     shaderMixedFloatDotProductFloat16-   VK_VALVE_shader_mixed_float_-      16-bit dot products of float16 problems
 *       AccFloat32                           dot_product                      without matrix units, or of few rows;
 *                                                                             with shaderFloat16 and storage-
 *                                                                             Buffer16BitAccess
 *     shaderMixedFloatDotProductBFloat16-  the same                           those of bfloat16 problems, with these
 *       Acc                                                                   and shaderBFloat16Type
 *
 * UNSUPPORTED says which required feature is missing. Errors: INVALID_ARGUMENT (null), UNSUPPORTED,
 * OUT_OF_HOST_MEMORY. */
VKATTN_API VkattnStatus vkattn_requirements_create(PFN_vkGetInstanceProcAddr get_instance_proc_addr,
                                                   VkInstance instance, VkPhysicalDevice physical_device,
                                                   VkattnRequirements** requirements, VkattnError* error);
VKATTN_API void vkattn_requirements_destroy(VkattnRequirements* requirements);
VKATTN_API uint32_t vkattn_requirements_extensions(const VkattnRequirements* requirements,
                                                   const char* const** extensions);
VKATTN_API const VkPhysicalDeviceFeatures2* vkattn_requirements_features(
    const VkattnRequirements* requirements);
/* Sets the features in a chain that the application has for VkDeviceCreateInfo::pNext, given by its first struct of
 * whatever type. A feature is set where the chain has a struct for it: its own, or VkPhysicalDeviceVulkan11Features,
 * 12 or 13. Structs that are missing are added at the end of the chain; they are the requirements', so that the chain
 * is valid until vkattn_requirements_destroy. Nothing else in the chain changes. The application adds those of
 * vkattn_requirements_extensions that its own list does not have, and gives the chain to vkattn_context_create too.
 * May be called for several chains; not for one object by several threads at once.
 * Errors: INVALID_ARGUMENT (null), OUT_OF_HOST_MEMORY. */
VKATTN_API VkattnStatus vkattn_requirements_merge(VkattnRequirements* requirements, void* chain,
                                                  VkattnError* error);

/* A context is a device as vkattn sees it, with the pipelines built so far.
 * Errors: INVALID_ARGUMENT, UNSUPPORTED (Vulkan below 1.2, bufferDeviceAddress not enabled), DEVICE_ERROR,
 * OUT_OF_HOST_MEMORY. INVALID_ARGUMENT too where info.debug_utils is set, and the instance does not have the
 * functions of VK_EXT_debug_utils.
 *
 * A lost device: the first call to which the driver answers VK_ERROR_DEVICE_LOST, and each later one that needs a
 * pipeline of this context, returns DEVICE_LOST, and the driver is not asked again. The library does not submit, so a
 * loss is usually seen first by the application. Plans and context can still be destroyed, and nothing else is of
 * use. */
VKATTN_API VkattnStatus vkattn_context_create(const VkattnContextInfo* info, VkattnContext** context,
                                              VkattnError* error);
/* After every plan of the context is destroyed and no recording is in use any more. Null is legal. */
VKATTN_API void vkattn_context_destroy(VkattnContext* context);

/* What no query tells of a device: where its matrix units keep the elements of a matrix. Plans made after
 * vkattn_context_probed may keep more in registers and be faster; without it nothing is assumed. Optional, once a
 * context:
 *
 *     vkattn_probe_size -> memory of that size with a device address, 4 bytes aligned, zeroed, readable by the host
 *     vkattn_cmd_probe records a few short dispatches; submit them, wait, make their writes visible to the host
 *     vkattn_context_probed with what the memory holds; no other call may use the context meanwhile
 *     vkattn_probe_results -> text to be kept for later contexts: see VkattnContextInfo::probe_results
 *
 * vkattn_context_probed returns INVALID_ARGUMENT for memory that holds no results of any shape, because nothing was
 * executed, or because the driver builds none of the probe's pipelines; the context goes on as without a probe.
 * A size of 0: there is nothing to probe, or the context is probed. tests/consumer/probe.c is a program that does all
 * this.
 * Errors: INVALID_ARGUMENT, DEVICE_LOST, OUT_OF_HOST_MEMORY. */
VKATTN_API uint64_t vkattn_probe_size(const VkattnContext* context); /* bytes; 0 for null */
VKATTN_API VkattnStatus vkattn_cmd_probe(VkCommandBuffer command_buffer, VkattnContext* context,
                                         VkDeviceAddress results, VkattnError* error);
VKATTN_API VkattnStatus vkattn_context_probed(VkattnContext* context, const void* results,
                                              uint64_t size_bytes, VkattnError* error);
/* Gives the context a module of the application's own, for plans whose options.variant is module.variant. Its form is
 * checked: whole instructions, a compute shader `main`, no specialization constant that the kernel does not have. What
 * it does is not, and no self-test covers it: spirv-val is for that, and the application's own tests. It may be called
 * while other threads use the context.
 * Errors: INVALID_ARGUMENT (null, an unknown name, code that is no such module, a module that this variant has
 * already), OUT_OF_HOST_MEMORY. */
VKATTN_API VkattnStatus vkattn_context_add_module(VkattnContext* context, const VkattnModule* module,
                                                  VkattnError* error);
/* One line for device, driver and version of vkattn, then what was found; "" for a context that is not probed. `text`,
 * `capacity` and `length` are as in vkattn_plan_describe. */
VKATTN_API VkattnStatus vkattn_probe_results(const VkattnContext* context, char* text, size_t capacity,
                                             size_t* length, VkattnError* error);

/* Are the kernels right on this device? Drivers miscompile. A self-test runs small problems through the kernels that
 * the planner would choose here, and compares the results with a float64 reference on the host. Plans that are made
 * later do without kernels that failed: the planner takes the next one, and vkattn_plan_describe says why. Optional,
 * and after the probe:
 *
 *     while vkattn_self_test_size is not 0, because a kernel that would be planned has no verdict yet:
 *         memory of that size, at most 16 MiB, in a buffer with the usages TRANSFER_DST and SHADER_DEVICE_ADDRESS, at
 *         an address that is a multiple of 256 bytes, readable by the host
 *         vkattn_self_test_build for each index below vkattn_self_test_count, if the caller wants to show how far it is
 *         or to stop: some thirty pipelines take half a minute on some drivers, and stopping leaves nothing to undo
 *         vkattn_cmd_self_test builds the pipelines that are not built yet, and records; submit, wait, make the writes
 *         of LAST_STAGES and LAST_ACCESS visible to the host
 *         vkattn_context_self_tested with what the memory holds
 *     vkattn_self_test_verdicts -> text to be kept for later contexts: see VkattnContextInfo::self_test_verdicts
 *
 * From vkattn_cmd_self_test to vkattn_context_self_tested no other call may use the context. A failure is a verdict on
 * a kernel with problems of these storage and operand types, forward or backward, or on its modules for operands in
 * types of their own, whatever these are; a driver that cannot build the kernel has failed, too. Where no kernel is
 * left, plans are UNSUPPORTED, with the reason; so are those that name a kernel which failed. vkattn_self_test_size is
 * also 0 where the host's memory has run out. Errors: INVALID_ARGUMENT (results that were not recorded, too),
 * DEVICE_LOST, DEVICE_ERROR (memory ran out), OUT_OF_HOST_MEMORY. */
VKATTN_API uint64_t vkattn_self_test_size(const VkattnContext* context);  /* bytes; 0 for null */
VKATTN_API uint32_t vkattn_self_test_count(const VkattnContext* context); /* tests; 0 where the size is 0 */
/* Builds the pipelines of one test. A driver that cannot build them is no error here. */
VKATTN_API VkattnStatus vkattn_self_test_build(VkattnContext* context, uint32_t index, VkattnError* error);
VKATTN_API VkattnStatus vkattn_cmd_self_test(VkCommandBuffer command_buffer, VkattnContext* context,
                                             VkBuffer buffer, VkDeviceSize offset, VkDeviceAddress address,
                                             VkattnError* error);
VKATTN_API VkattnStatus vkattn_context_self_tested(VkattnContext* context, const void* results,
                                                   uint64_t size_bytes, VkattnError* error);
/* One line for device, driver and version of vkattn, then one for each verdict: the pass (with `mixed-` before it
 * where it is of operands in types of their own, of which the query's is told), the kernel, the types of storage and
 * operands, `passed`, or `failed` and what is wrong. `text`, `capacity` and `length` are as in
 * vkattn_plan_describe. */
VKATTN_API VkattnStatus vkattn_self_test_verdicts(const VkattnContext* context, char* text, size_t capacity,
                                                  size_t* length, VkattnError* error);

/* Validates, plans, and builds the pipelines that the plan needs and the context does not have yet. Nothing is built
 * for a batch, a head count, a sequence length, a scale or a bound as such. But there are thresholds at which another
 * pipeline takes over, once a context: few query rows; keys split or not; strides from 4 GiB on, or rows of a tile
 * 2 GiB apart. `options` may be null.
 * Errors: INVALID_ARGUMENT (error->field names the field), UNSUPPORTED (with the reason), OUT_OF_HOST_MEMORY,
 * DEVICE_ERROR (a pipeline could not be created even in the smallest variant), DEVICE_LOST. */
VKATTN_API VkattnStatus vkattn_plan_create(VkattnContext* context, const VkattnProblem* problem,
                                           const VkattnOptions* options, VkattnPlan** plan,
                                           VkattnError* error);
VKATTN_API void vkattn_plan_destroy(VkattnPlan* plan); /* null is legal */

/* Would this be planned, and how? Validates and plans as vkattn_plan_create does, with the same answers, but builds no
 * pipeline and allocates nothing that stays: microseconds, for those who ask about thousands of shapes. `info` may be
 * null. OK is no promise that the driver can build the pipelines; a tuning row that it has refused before is not
 * planned again. Errors: as vkattn_plan_create, but DEVICE_ERROR and DEVICE_LOST. */
VKATTN_API VkattnStatus vkattn_plan_check(VkattnContext* context, const VkattnProblem* problem,
                                          const VkattnOptions* options, VkattnPlanInfo* info,
                                          VkattnError* error);

/* The same of a plan that was made: which kernel and tuning row, how many segments, how much scratch. */
VKATTN_API VkattnStatus vkattn_plan_info(const VkattnPlan* plan, VkattnPlanInfo* info, VkattnError* error);

/* Fills size and alignment of the scratch memory that each recording of this plan needs. */
VKATTN_API VkattnStatus vkattn_plan_scratch(const VkattnPlan* plan, VkattnScratch* scratch,
                                            VkattnError* error);

/* The plan as JSON text: kernel, tuning row, tiles, dispatches, scratch, and why each other kernel was refused.
 * Writes at most `capacity` bytes with the final zero, and to *length the length without it; call with capacity 0
 * to ask. */
VKATTN_API VkattnStatus vkattn_plan_describe(const VkattnPlan* plan, char* text, size_t capacity,
                                             size_t* length, VkattnError* error);

/* Records the forward. Overwrites the bound compute pipeline and push constants; illegal inside a render pass.
 * Records the barriers between its own dispatches, none before the first or after the last.
 * Errors: INVALID_ARGUMENT (null or misaligned address; an output that overlaps something; scratch that is missing, too
 * small, or not where scratch_buffer and scratch_offset say); nothing is recorded then. */
VKATTN_API VkattnStatus vkattn_cmd_forward(VkCommandBuffer command_buffer, const VkattnPlan* plan,
                                           const VkattnForwardArgs* args, VkattnError* error);

/* A plan is a sequence of segments, each a dispatch that no driver's watchdog should mind: vkattn_cmd_forward records
 * them all, vkattn_cmd_forward_range those from `first` on, so that a long forward can be spread over several command
 * buffers and submissions. Every segment must be recorded once, with the same arguments, and executed on one queue in
 * order; the barriers between segments are recorded by the later one. Scratch holds intermediate results all the while.
 *
 * A command buffer and a submission may take as many segments as the caller likes; what limits them is how long a
 * queue may be busy. Windows and amdgpu give a submission about two seconds, and nothing else runs meanwhile. A
 * segment costs at most VkattnPlanInfo::max_segment_flops, by default no more than 5e10, and on discrete devices 5e11
 * or, if that is more, 2e10 for each multiprocessor (unless the work cannot be cut so fine): with the kernels for
 * 32-bit arithmetic about a tenth of a second of a device that is used well. Callers that must not wait submit one or
 * two, measure, and go on with as many as take a quarter of a second. */
VKATTN_API uint32_t vkattn_plan_segments(const VkattnPlan* plan); /* 0 for null */
/* Errors: as vkattn_cmd_forward; INVALID_ARGUMENT if first + count exceeds the number of segments. */
VKATTN_API VkattnStatus vkattn_cmd_forward_range(VkCommandBuffer command_buffer, const VkattnPlan* plan,
                                                 const VkattnForwardArgs* args, uint32_t first,
                                                 uint32_t count, VkattnError* error);

/* The plan of a backward: gradients by recomputed tiles, never all of seqlen_q x seqlen_kv in memory (`matrix` may keep
 * a bounded part of the score gradients: the plan's description then has "spill"). `backward` and
 * `options` may be null; of the options, num_splits must be 0 or 1. One plan always gives the same bits; plans whose
 * loops are cut at different places (max_dispatch_flops, scratch) differ in the last ones, with batch_invariant too.
 * Scratch of the kernel `tiles` is at most, each term rounded up to 256 bytes,
 *     384 + 16 * rows                                   rows = batch * num_heads_q * seqlen_q
 *     + 4 * tiles of the mask, where they are classified (at most 256 MiB)
 *     + 16 * max(rows * ceil4(head_dim_qk), batch * num_heads_kv * seqlen_kv * 2 * ceil4(larger head_dim))
 *       only where one workgroup's loop exceeds max_dispatch_flops; ceil4(d): d / 4, rounded up to a multiple of the
 *       invocations that share a row, times the slices that head dims are in.
 * Recorded by vkattn_cmd_backward only. Errors: as vkattn_plan_create. */
VKATTN_API VkattnStatus vkattn_backward_create(VkattnContext* context, const VkattnProblem* problem,
                                               const VkattnBackward* backward, const VkattnOptions* options,
                                               VkattnPlan** plan, VkattnError* error);

/* As vkattn_plan_check, of vkattn_backward_create. */
VKATTN_API VkattnStatus vkattn_backward_check(VkattnContext* context, const VkattnProblem* problem,
                                              const VkattnBackward* backward, const VkattnOptions* options,
                                              VkattnPlanInfo* info, VkattnError* error);

/* Records the backward; everything that vkattn_cmd_forward and vkattn_cmd_forward_range promise holds here. After a
 * forward in the same command buffer the caller's barrier makes out and lse visible, as between any two recordings. */
VKATTN_API VkattnStatus vkattn_cmd_backward(VkCommandBuffer command_buffer, const VkattnPlan* plan,
                                            const VkattnBackwardArgs* args, VkattnError* error);
VKATTN_API VkattnStatus vkattn_cmd_backward_range(VkCommandBuffer command_buffer, const VkattnPlan* plan,
                                                  const VkattnBackwardArgs* args, uint32_t first,
                                                  uint32_t count, VkattnError* error);

/* Merging of partial outputs; see VkattnCombine. The plan needs no scratch and is recorded by vkattn_cmd_combine only.
 *
 * It may merge in place: out may be one of the parts, if it has the part's address, strides and type
 * (args.out = args.parts + p * part_stride in bytes, out_strides = parts_strides, dtype = parts_dtype), and lse may
 * be the lse of one of them (args.lse = args.parts_lse + p * batch * num_heads * seqlen_q * 4), the same part's or
 * another's. What is overwritten must share no element with the other parts. Any other overlap is refused, as above.
 * Errors: as vkattn_plan_create. */
VKATTN_API VkattnStatus vkattn_combine_create(VkattnContext* context, const VkattnCombine* combine,
                                              VkattnPlan** plan, VkattnError* error);
/* As vkattn_plan_check, of vkattn_combine_create. */
VKATTN_API VkattnStatus vkattn_combine_check(VkattnContext* context, const VkattnCombine* combine,
                                             VkattnPlanInfo* info, VkattnError* error);
VKATTN_API VkattnStatus vkattn_cmd_combine(VkCommandBuffer command_buffer, const VkattnPlan* plan,
                                           const VkattnCombineArgs* args, VkattnError* error);

/* Plans the pass that makes a problem's block map of its mask; see VkattnProblem::block_map. The problem is that of the
 * forward or backward which reads the map, with mask and block_map set. A block becomes 0 where the mask hides every
 * key, 1 where it hides none and adds nothing but zeros, and 2 otherwise, as where it adds NaN. Where the map has fewer
 * heads or batches than the mask, a block is 0 or 1 only if it is so in all that share it. The pass does not look at
 * what else hides keys, such as causal and lengths. The map serves as long as the mask does not change. Mind a mask
 * that is learned: in blocks that are 1, because it is still 0 there, dbias gets nothing.
 * The plan needs no scratch. Only vkattn_cmd_block_map records it, all segments at once. One workgroup reads all that a
 * block stands for, one after the other, so that a map of large blocks takes longer.
 * Errors: as vkattn_plan_create; INVALID_ARGUMENT for a problem without a mask or without block_map; UNSUPPORTED for
 * blocks of more than 2^26 elements of the mask, in all heads and batches that they stand for. */
VKATTN_API VkattnStatus vkattn_block_map_create(VkattnContext* context, const VkattnProblem* problem,
                                                VkattnPlan** plan, VkattnError* error);
/* Says what vkattn_block_map_create would plan, as vkattn_plan_check does of vkattn_plan_create. */
VKATTN_API VkattnStatus vkattn_block_map_check(VkattnContext* context, const VkattnProblem* problem,
                                               VkattnPlanInfo* info, VkattnError* error);
/* Records the pass. It reads args.mask and writes args.block_map, which a forward or backward may read behind a
 * barrier; the other addresses are not looked at. It reads and writes aligned words of 4 bytes: what lies beside the
 * map in its first and last word keeps its content, but nobody else may write there meanwhile. The rest is as for
 * vkattn_cmd_forward. */
VKATTN_API VkattnStatus vkattn_cmd_block_map(VkCommandBuffer command_buffer, const VkattnPlan* plan,
                                             const VkattnForwardArgs* args, VkattnError* error);

#ifdef __cplusplus
}
#endif
#endif
