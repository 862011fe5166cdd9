/* vkattn's runtime in C: it owns instance, device, queue and memory, for programs and languages that have no Vulkan of
 * their own. It is a library beside the one of vkattn.h, whose plans it runs; an embedder with a device needs none of
 * it.
 *
 *     vkattn_runtime_open -> vkattn_runtime_context -> vkattn_plan_create and the other plans of vkattn.h
 *             -> vkattn_buffer_create, vkattn_buffer_write (the tensors, on the device)
 *             -> vkattn_runtime_run_forward (brings scratch, submits in pieces, waits)
 *             -> vkattn_buffer_read -> vkattn_plan_destroy, vkattn_buffer_destroy, vkattn_runtime_close
 *
 * Statuses and VkattnError are those of vkattn.h. Each function that takes a VkattnError may return INTERNAL_ERROR and
 * OUT_OF_HOST_MEMORY; each one that submits, DEVICE_ERROR and DEVICE_LOST. What fails leaves nothing behind, and can be
 * called again; after DEVICE_LOST everything can only be destroyed.
 *
 * Ownership: who creates an object destroys it. Plans and buffers go before their runtime. What a function returns by a
 * pointer to const belongs to the runtime and is valid until vkattn_runtime_close.
 *
 * Thread safety: a runtime and its buffers may be used from many threads at once; submissions and transfers wait for
 * each other. A buffer is destroyed when no call uses it any more. */
#ifndef VKATTN_RUNTIME_H
#define VKATTN_RUNTIME_H

#include <string.h>

#include "vkattn/vkattn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* VKATTN_RUNTIME_SHARED: the runtime is a DLL. VKATTN_RUNTIME_BUILDING: this is the runtime. */
#if defined(_WIN32) && defined(VKATTN_RUNTIME_BUILDING)
#define VKATTN_RUNTIME_API __declspec(dllexport)
#elif defined(_WIN32) && defined(VKATTN_RUNTIME_SHARED)
#define VKATTN_RUNTIME_API __declspec(dllimport)
#elif defined(__GNUC__)
#define VKATTN_RUNTIME_API __attribute__((visibility("default")))
#else
#define VKATTN_RUNTIME_API
#endif

/* The defaults of the runtime's structs are zeros, and structs grow at their end only: a caller sets all bytes to zero
 * and struct_size to the size that it knows, as these functions do. A runtime reads and writes no more than that. */
#define VKATTN_RUNTIME_INIT_FUNCTION(type, name) \
    static inline void name(type* object) {      \
        memset(object, 0, sizeof(type));         \
        object->struct_size = sizeof(type);      \
    }

/* A Vulkan device of this machine. */
typedef struct VkattnDeviceInfo {
    size_t struct_size;
    uint32_t index; /* in vkEnumeratePhysicalDevices order */
    uint32_t vendor_id;
    uint32_t api_version; /* as VK_MAKE_API_VERSION has it */
    uint32_t subgroup_size;
    uint32_t shared_memory_bytes;
    uint32_t max_invocations; /* of a workgroup */
    char type[16];            /* discrete, integrated, virtual, cpu, other */
    char name[256];
    char driver[520];  /* the driver's name and its own version text */
    char uuid[40];     /* 32 hex digits */
    char refusal[320]; /* why vkattn cannot use it; "" if it can */
} VkattnDeviceInfo;
VKATTN_RUNTIME_INIT_FUNCTION(VkattnDeviceInfo, vkattn_device_info_init)

/* When the runtime runs the self-test of vkattn_self_test_size. It builds some thirty pipelines, which takes seconds on
 * some drivers and half a minute on others; VkattnRuntimeOptions::self_test_progress follows it. A driver that it hangs
 * loses the device: vkattn_runtime_open returns DEVICE_LOST then, and the next one with the same file leaves the test
 * out, with a message. */
typedef enum VkattnSelfTest {
    /* Once for a driver, if there is a pipeline_cache file, which keeps the verdicts: the default. Without a file it is
     * not run. */
    VKATTN_SELF_TEST_ONCE = 0,
    VKATTN_SELF_TEST_ALWAYS = 1,
    VKATTN_SELF_TEST_NEVER = 2, /* what a file says of earlier tests is not read, either */
    VKATTN_SELF_TEST_MAX_ENUM = 0x7fffffff
} VkattnSelfTest;

typedef struct VkattnRuntimeOptions {
    size_t struct_size;
    /* Index, part of the name (any case) or UUID. Null or "": the environment's VKATTN_DEVICE, else the first usable of
     * discrete, integrated, virtual, CPU. */
    const char* device;
    /* File of compiled pipelines: read by vkattn_runtime_open if it is there, written by vkattn_runtime_close, or
     * earlier by vkattn_runtime_save_cache. cache_failed hears of it where it cannot be written. Its form is vkattn's
     * own. Nothing is taken from a file that is damaged, or that another device, driver or version of
     * vkattn has written; it is replaced. A file that vkattn has not written is INVALID_ARGUMENT, and stays as it is.
     * Null or "": none. */
    const char* pipeline_cache;
    /* Device extensions to enable on top of those that vkattn wants. */
    const char* const* extra_extensions;
    uint32_t extra_extension_count;
    /* The instance is of this Vulkan version, or of an older one that the loader has. 0: 1.3; otherwise at least
     * 1.2. */
    uint32_t api_version;
    uint32_t
        validation; /* boolean: the Khronos layer, core and synchronization checks; see vkattn_runtime_message */
    uint64_t self_test; /* a VkattnSelfTest */
    /* Called before each step of the self-test, on the thread of vkattn_runtime_open, with how many of its steps are
     * done and what the next one does, as "compiling the self-test"; may be null. Where kernels have failed, those in
     * their place are tested in another round, which begins with 0 again. A step is a few pipelines, and takes up to
     * some seconds. Another result than 0 stops the self-test: vkattn_runtime_open succeeds, kernels that have no
     * verdict yet are planned as if there were no self-test, and vkattn_runtime_message says so. The pipeline_cache
     * file keeps the pipelines that were built but no verdicts, so that the next start tests again. */
    int32_t (*self_test_progress)(void* self_test_user, uint32_t done, uint32_t steps, const char* doing);
    void* self_test_user;
    /* Called at most once, where the pipeline_cache file cannot be written: by vkattn_runtime_open, which writes the
     * self-test's verdicts, or by vkattn_runtime_close, on the thread of that call. `why` is a line of text that begins
     * with "options.pipeline_cache: ". Nothing else is wrong then: the next start takes longer. It must not close the
     * runtime, and what it throws in C++ is dropped. May be null. */
    void (*cache_failed)(void* cache_user, const char* why);
    void* cache_user;
} VkattnRuntimeOptions;
VKATTN_RUNTIME_INIT_FUNCTION(VkattnRuntimeOptions, vkattn_runtime_options_init)

/* What the runtime has made, for programs that call Vulkan themselves. */
typedef struct VkattnRuntimeHandles {
    size_t struct_size;
    PFN_vkGetInstanceProcAddr get_instance_proc_addr;
    VkInstance instance;
    VkPhysicalDevice physical_device;
    VkDevice device;
    /* The runtime submits to it under a lock of its own: submit to it only while nobody uses the runtime, or through
     * vkattn_runtime_submit. */
    VkQueue queue;
    uint32_t queue_family;
} VkattnRuntimeHandles;

/* What a run or a submission took. Drivers kill what runs for seconds, so a plan's segments are submitted a few at a
 * time: one at first, then as many as fit a quarter of a second by the times so far. Whoever gives the same struct to
 * the next run of a plan goes on at the pace of the last one. */
typedef struct VkattnRun {
    size_t struct_size;
    /* Out: milliseconds on the device by timestamps, the submissions' sum; by the host's clock where the queue has no
     * timestamps. */
    double time_ms;
    double record_us;     /* out: microseconds that recording took on the host */
    uint32_t submissions; /* out */
    /* In: segments of the first submission; 0 is 1. Out: as many as fit the next one. */
    uint32_t segments_at_once;
    /* In: called after each submission of a run, on the caller's thread, with how many of its segments are done; may be
     * null. It may use the runtime. */
    void (*progress)(void* progress_user, uint32_t done, uint32_t segments);
    void* progress_user;
    /* In: submissions after which a call returns, for programs that must be able to stop a long run; 0: a call returns
     * when the run has ended. With a number, call again with the same struct and the same arguments until first_segment
     * is 0. Whoever does not leaves undefined what the run was to write. Between the calls nothing of the run is under
     * way on the device. Scratch, if the plan needs any, has to be the caller's. */
    uint32_t most_submissions;
    /* In: the segment to begin with. Out: the segment that the next call begins with; 0 if the run has ended. */
    uint32_t first_segment;
    /* In: the device begins the run when wait_semaphore has at least wait_value, and sets signal_semaphore to
     * signal_value when it has ended; null is none. Both are of this runtime. While a call waits for its run, nobody
     * else can use the runtime: what the run waits for has to come from elsewhere, and time_ms may count the wait. A
     * run that fails, or that is not continued, signals nothing. */
    const struct VkattnSemaphore* wait_semaphore;
    uint64_t wait_value;
    const struct VkattnSemaphore* signal_semaphore;
    uint64_t signal_value;
    /* In, boolean: the call does not wait for the last submission of the run, which signals signal_semaphore, and there
     * has to be one. Until that has signal_value, the caller keeps the plan, the semaphores, all tensors and the
     * scratch, which has to be the caller's. A run of more segments than segments_at_once has several submissions: the
     * call waits for all but the last, and so for wait_semaphore, and time_ms and progress tell of these only. A
     * runtime does in order what it is given: whatever waits, as reading a buffer, waits for all that was given
     * before. */
    uint64_t asynchronous;
} VkattnRun;
VKATTN_RUNTIME_INIT_FUNCTION(VkattnRun, vkattn_run_init)

typedef struct VkattnRuntime VkattnRuntime;
typedef struct VkattnBuffer VkattnBuffer; /* device memory with an address */

/* Describes the devices of this machine: as many as `capacity` allows, in the array `devices`, whose elements all have
 * the struct_size that the first one says. Writes to *count how many there are; call with capacity 0 to ask.
 * Errors: INVALID_ARGUMENT, UNSUPPORTED (no Vulkan loader or driver). */
VKATTN_RUNTIME_API VkattnStatus vkattn_runtime_devices(VkattnDeviceInfo* devices, uint32_t capacity,
                                                       uint32_t* count, VkattnError* error);

/* A device as text, one key=value a fact: all that the planner asks of it, and more. `index`: as in VkattnDeviceInfo.
 * Writes at most `capacity` bytes with the final zero, and to *length the length without it; call with capacity 0 to
 * ask. Errors: INVALID_ARGUMENT (null, no such device), UNSUPPORTED (no Vulkan, or a device below 1.1). */
VKATTN_RUNTIME_API VkattnStatus vkattn_runtime_profile(uint32_t index, char* text, size_t capacity,
                                                       size_t* length, VkattnError* error);

/* What a device has beside float32 arithmetic, as JSON text: `matrices`, the shapes m, n, k of its matrix unit with the
 * types of a x b + c = result, and if matrix kernels can use them; and `matrix_kernels`, `bfloat16`,
 * `bfloat16_matrices` and `integer_dot_products`, each with `available` and `why_not`. Otherwise as
 * vkattn_runtime_profile. */
VKATTN_RUNTIME_API VkattnStatus vkattn_runtime_units(uint32_t index, char* text, size_t capacity,
                                                     size_t* length, VkattnError* error);

/* Picks a device and makes everything that plans need. `options` may be null. Where matrix units have to be probed for
 * vkattn to be fast, this does it. A device that executes nothing, as compile-only drivers do, can be opened and plans
 * can be made on it; whatever is submitted to it, by any function, returns DEVICE_ERROR. The instance has
 * VK_EXT_debug_utils where there is one, and captures the labels of vkattn. Environment: VKATTN_DEVICE,
 * see VkattnRuntimeOptions::device. Errors: INVALID_ARGUMENT (no such device; the message lists those that there
 * are), UNSUPPORTED (no Vulkan loader or driver, no device, one that vkattn cannot use, no validation layer),
 * DEVICE_ERROR. */
VKATTN_RUNTIME_API VkattnStatus vkattn_runtime_open(const VkattnRuntimeOptions* options,
                                                    VkattnRuntime** runtime, VkattnError* error);
/* After every plan and buffer of the runtime. Null is legal. Writes the pipeline_cache file, and cannot return whether
 * it could: call vkattn_runtime_save_cache before, or set VkattnRuntimeOptions::cache_failed. */
VKATTN_RUNTIME_API void vkattn_runtime_close(VkattnRuntime* runtime);

/* Writes the pipelines built so far to the options' pipeline_cache file, in one step: programs that run for days need
 * not wait for vkattn_runtime_close. A file that has them already is not touched. VKATTN_OK where there is no such
 * option. Errors: INVALID_ARGUMENT with the field options.pipeline_cache (the file cannot be written: its folder or
 * itself is read-only, or the disk is full), DEVICE_ERROR, DEVICE_LOST, OUT_OF_HOST_MEMORY. One thread at a time calls
 * it. */
VKATTN_RUNTIME_API VkattnStatus vkattn_runtime_save_cache(VkattnRuntime* runtime, VkattnError* error);

/* The device as vkattn.h sees it, for vkattn_plan_create, vkattn_backward_create and vkattn_combine_create. These four
 * return null for a null runtime. */
VKATTN_RUNTIME_API VkattnContext* vkattn_runtime_context(const VkattnRuntime* runtime);
VKATTN_RUNTIME_API const VkattnDeviceInfo* vkattn_runtime_device(const VkattnRuntime* runtime);
VKATTN_RUNTIME_API const VkattnRuntimeHandles* vkattn_runtime_handles(const VkattnRuntime* runtime);
/* A message, or null past the last so far; none is good. They are those of the validation layer, with
 * options.validation; the warnings of the context (VKATTN_MESSAGE_WARNING), as one for each kernel that the self-test
 * has found wrong, which is not used then; one where a probe of the matrix units has failed, which only costs speed;
 * one where the pipeline_cache file is not used, and why; and one where the self-test could not be run, was stopped, or
 * is left out because it did not end at two earlier starts: the device was lost, or the process ended. */
VKATTN_RUNTIME_API const char* vkattn_runtime_message(const VkattnRuntime* runtime, uint32_t index);

/* Allocates device memory. 0 bytes are legal: such a buffer has address 0. The content is undefined.
 * Errors: INVALID_ARGUMENT (null), DEVICE_ERROR (vk_result says whether memory ran out). */
VKATTN_RUNTIME_API VkattnStatus vkattn_buffer_create(VkattnRuntime* runtime, uint64_t size_bytes,
                                                     VkattnBuffer** buffer, VkattnError* error);
VKATTN_RUNTIME_API void vkattn_buffer_destroy(VkattnBuffer* buffer); /* null is legal */
/* A null buffer is an empty one for these and for what follows. */
VKATTN_RUNTIME_API VkDeviceAddress vkattn_buffer_address(const VkattnBuffer* buffer); /* a multiple of 256 */
VKATTN_RUNTIME_API VkBuffer vkattn_buffer_handle(const VkattnBuffer* buffer);
VKATTN_RUNTIME_API uint64_t
vkattn_buffer_size(const VkattnBuffer* buffer); /* bytes, as they were asked for */

/* Copies between the host's memory and the buffer, from its byte offset_bytes on; done when the function returns.
 * Errors: INVALID_ARGUMENT (null data, bytes past the buffer's end). */
VKATTN_RUNTIME_API VkattnStatus vkattn_buffer_write(VkattnBuffer* buffer, uint64_t offset_bytes,
                                                    const void* data, uint64_t size_bytes,
                                                    VkattnError* error);
VKATTN_RUNTIME_API VkattnStatus vkattn_buffer_read(const VkattnBuffer* buffer, uint64_t offset_bytes,
                                                   void* data, uint64_t size_bytes, VkattnError* error);
/* Sets every 4 bytes of the buffer; a trailing part of a word stays. */
VKATTN_RUNTIME_API VkattnStatus vkattn_buffer_fill(VkattnBuffer* buffer, uint32_t word, VkattnError* error);

/* Sharing with other APIs of this machine, without a copy: CUDA maps such memory by cuImportExternalMemory and such
 * semaphores by cuImportExternalSemaphore, other Vulkan devices by VkImportMemoryFdInfoKHR and
 * VkImportSemaphoreFdInfoKHR. A file descriptor is an opaque one (VK_KHR_external_memory_fd and
 * VK_KHR_external_semaphore_fd). It is the caller's until an importer takes it over, as these do; one that nobody
 * imports is to be closed. The importer has to use the same device: Vulkan's deviceUUID, which is
 * VkattnDeviceInfo::uuid, and its driverUUID. What one side has written the other may read when a semaphore or the host
 * has seen its end. UNSUPPORTED where a device exports nothing; those that run on CPUs export memory, but no
 * semaphores. */
typedef struct VkattnSemaphore VkattnSemaphore; /* a timeline semaphore: a number that only grows */

/* This does what vkattn_buffer_create does, but the buffer has memory of its own that can be exported. size_bytes must
 * not be 0. */
VKATTN_RUNTIME_API VkattnStatus vkattn_buffer_create_exportable(VkattnRuntime* runtime, uint64_t size_bytes,
                                                                VkattnBuffer** buffer, VkattnError* error);
/* Gives a new descriptor of the buffer's memory, with its size and its memory type, which importers have to say. It
 * begins with the buffer's byte 0, and is dedicated to it (CUDA_EXTERNAL_MEMORY_DEDICATED). It lives until the buffer
 * and all that have imported it are gone. Errors: INVALID_ARGUMENT (null, another buffer), DEVICE_ERROR. */
VKATTN_RUNTIME_API VkattnStatus vkattn_buffer_export(const VkattnBuffer* buffer, int* fd,
                                                     uint64_t* memory_bytes, uint32_t* memory_type,
                                                     VkattnError* error);
/* Makes a timeline semaphore with this value. It goes before its runtime, as buffers do, and when nothing uses it. Its
 * other functions may be called while runs use it. */
VKATTN_RUNTIME_API VkattnStatus vkattn_semaphore_create(VkattnRuntime* runtime, uint64_t value,
                                                        VkattnSemaphore** semaphore, VkattnError* error);
VKATTN_RUNTIME_API void vkattn_semaphore_destroy(VkattnSemaphore* semaphore); /* null is legal */
VKATTN_RUNTIME_API VkattnStatus vkattn_semaphore_export(const VkattnSemaphore* semaphore, int* fd,
                                                        VkattnError* error);
/* Waits on the host until the semaphore has at least the value: *has_passed is 1 then, and 0 if timeout_ns has passed
 * before, which is no error. Errors: INVALID_ARGUMENT (null), DEVICE_ERROR, DEVICE_LOST. */
VKATTN_RUNTIME_API VkattnStatus vkattn_semaphore_wait(const VkattnSemaphore* semaphore, uint64_t value,
                                                      uint64_t timeout_ns, int* has_passed,
                                                      VkattnError* error);
/* Sets the value, from the host. A value that is not larger than the last one, here or in a run, is undefined, as in
 * Vulkan. */
VKATTN_RUNTIME_API VkattnStatus vkattn_semaphore_signal(const VkattnSemaphore* semaphore, uint64_t value,
                                                        VkattnError* error);

/* Runs a plan of vkattn_plan_create, vkattn_backward_create, vkattn_combine_create or vkattn_block_map_create, and
 * waits, unless run.asynchronous is set: results may be read when the function returns. Scratch is allocated for the
 * run where args.scratch_buffer is null; who runs a plan many times may bring scratch of his own, which saves the
 * allocation. `run` may be null.
 * Errors: as vkattn_cmd_forward, vkattn_cmd_backward, vkattn_cmd_combine and vkattn_cmd_block_map; INVALID_ARGUMENT
 * (run.first_segment is none of the plan's; run.wait_semaphore or run.signal_semaphore is of another runtime;
 * args.scratch_buffer is null where run.most_submissions, run.first_segment or run.asynchronous is not 0 and the plan
 * needs scratch; run.signal_semaphore is null where run.asynchronous is not 0); nothing has run then. DEVICE_ERROR (no
 * memory for scratch). */
VKATTN_RUNTIME_API VkattnStatus vkattn_runtime_run_forward(VkattnRuntime* runtime, const VkattnPlan* plan,
                                                           const VkattnForwardArgs* args, VkattnRun* run,
                                                           VkattnError* error);
VKATTN_RUNTIME_API VkattnStatus vkattn_runtime_run_backward(VkattnRuntime* runtime, const VkattnPlan* plan,
                                                            const VkattnBackwardArgs* args, VkattnRun* run,
                                                            VkattnError* error);
VKATTN_RUNTIME_API VkattnStatus vkattn_runtime_run_combine(VkattnRuntime* runtime, const VkattnPlan* plan,
                                                           const VkattnCombineArgs* args, VkattnRun* run,
                                                           VkattnError* error);
VKATTN_RUNTIME_API VkattnStatus vkattn_runtime_run_block_map(VkattnRuntime* runtime, const VkattnPlan* plan,
                                                             const VkattnForwardArgs* args, VkattnRun* run,
                                                             VkattnError* error);

/* Records commands into one command buffer, submits it once and waits, for what a run does not do: several plans in one
 * submission. The semaphores of `run`, and run.asynchronous, are what they are for a run, and time_ms is 0 if it is
 * asynchronous; the other inputs are ignored. `record` is called once, on this thread, with `user`; it must call
 * nothing of the runtime that submits: no run, no transfer, no submission, which would wait for this one for ever. It
 * returns VKATTN_OK, or else a status, with `error` filled: nothing is submitted then, and both are what
 * vkattn_runtime_submit returns. `run` may be null.
 * Errors: INVALID_ARGUMENT (null, and for semaphores as above), and those of `record`. */
typedef VkattnStatus (*VkattnRecord)(VkCommandBuffer command_buffer, void* user, VkattnError* error);
VKATTN_RUNTIME_API VkattnStatus vkattn_runtime_submit(VkattnRuntime* runtime, VkattnRecord record, void* user,
                                                      VkattnRun* run, VkattnError* error);

/* Records the barrier that two recordings need where the later one reads what the earlier one has written, or has the
 * same scratch: between plans, and between plans and copies. Nothing is recorded where an argument is null. */
VKATTN_RUNTIME_API void vkattn_runtime_barrier(const VkattnRuntime* runtime, VkCommandBuffer command_buffer);

#ifdef __cplusplus
}
#endif
#endif
