/* A program as an older version's headers made it, run with today's shared libraries: tests/abi/run compiles it against
 * kept headers. It gives each struct of its own size, and behind it bytes that nobody may touch. Keys are 0, so that
 * each row is the mean of its values, and the answers are plain sums. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "vkattn/runtime.h"

enum { HEADS = 4, KV_HEADS = 2, ROWS = 5, KEYS = 3, DIM = 7, DIM_V = 5, LSE = HEADS * ROWS };

/* All of this lies in the buffer. The parts of the combine are out, twice, and both lse. */
typedef struct Arrays {
    float query[LSE * DIM], key[KV_HEADS * KEYS * DIM], value[KV_HEADS * KEYS * DIM_V], dout[LSE * DIM_V];
    float out[LSE * DIM_V], lse[2 * LSE], dquery[LSE * DIM], dkey[KV_HEADS * KEYS * DIM];
    float dvalue[KV_HEADS * KEYS * DIM_V], merged[LSE * DIM_V], merged_lse[LSE];
} Arrays;

/* A struct with an older program's size and the defaults that its init function sets, with a guard behind it. */
#define GUARDED(type, name, init)        \
    struct {                             \
        type it;                         \
        unsigned char behind[64];        \
    } name;                              \
    memset(&name, 0x5a, sizeof name);    \
    guards[guard_count++] = name.behind; \
    init(&name.it)
#define EXPECT(condition) \
    if (!(condition)) return printf("failed: line %d: %s: %s\n", __LINE__, #condition, error.message), 1
#define CALL(call) EXPECT((call) == VKATTN_OK && error.status == VKATTN_OK)

static VkattnError error;
static const unsigned char* guards[16]; /* of the function that runs */
static int guard_count;
static Arrays data;

/* True if nobody has written behind the structs so far, which go out of scope then. */
static int guards_hold(void) {
    while (guard_count > 0) {
        const unsigned char* const behind = guards[--guard_count];
        for (int i = 0; i < 64; i++)
            if (behind[i] != 0x5a) return 0;
    }
    return 1;
}

static int is_near(float got, double right) {
    return fabs((double)got - right) < 1e-5;
}

static void fill(float* to, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = (float)((i * 37 + 11) % 64) / 32 - 1;
}

/* A context of the runtime's device, made as an embedder makes one. */
static int make_context(const VkattnRuntimeHandles* h, VkattnContext** context) {
    VkattnRequirements* needed = NULL;
    GUARDED(VkattnContextInfo, info, vkattn_context_info_init);
    CALL(vkattn_requirements_create(h->get_instance_proc_addr, h->instance, h->physical_device, &needed,
                                    &error));
    info.it.get_instance_proc_addr = h->get_instance_proc_addr;
    info.it.instance = h->instance;
    info.it.physical_device = h->physical_device;
    info.it.device = h->device;
    info.it.api_version = VK_API_VERSION_1_3;
    info.it.features = vkattn_requirements_features(needed);
    info.it.enabled_extension_count = vkattn_requirements_extensions(needed, &info.it.enabled_extensions);
    info.it.self_test_verdicts = "of nobody";
    CALL(vkattn_context_create(&info.it, context, &error));
    vkattn_requirements_destroy(needed);
    EXPECT(guards_hold());
    return 0;
}

static int make_plans(VkattnContext* context, VkattnPlan* plans[3]) {
    GUARDED(VkattnProblem, problem, vkattn_problem_init);
    GUARDED(VkattnOptions, options, vkattn_options_init);
    GUARDED(VkattnBackward, backward, vkattn_backward_init);
    GUARDED(VkattnCombine, merge, vkattn_combine_init);
    GUARDED(VkattnPlanInfo, info, vkattn_plan_info_init);
    GUARDED(VkattnScratch, scratch, vkattn_scratch_init);
    problem.it.num_heads_q = merge.it.num_heads = HEADS;
    problem.it.num_heads_kv = KV_HEADS;
    problem.it.seqlen_q = merge.it.seqlen_q = ROWS;
    problem.it.seqlen_kv = KEYS;
    problem.it.head_dim_qk = DIM;
    problem.it.head_dim_v = merge.it.head_dim_v = DIM_V;
    options.it.kernel = VKATTN_KERNEL_TILES;
    merge.it.num_parts = 2;
    merge.it.part_stride = 0;
    CALL(vkattn_plan_check(context, &problem.it, &options.it, &info.it, &error));
    EXPECT(strcmp(info.it.kernel, "tiles") == 0 && info.it.segments == 1 && info.it.max_segment_flops > 0);
    CALL(vkattn_plan_create(context, &problem.it, &options.it, &plans[0], &error));
    CALL(vkattn_backward_create(context, &problem.it, &backward.it, &options.it, &plans[1], &error));
    CALL(vkattn_combine_create(context, &merge.it, &plans[2], &error));
    CALL(vkattn_plan_info(plans[1], &info.it, &error));
    CALL(vkattn_plan_scratch(plans[1], &scratch.it, &error));
    EXPECT(scratch.it.size_bytes == info.it.scratch_bytes && scratch.it.size_bytes > 0);
    EXPECT(guards_hold());
    return 0;
}

#define AT(array) (vkattn_buffer_address(buffer) + offsetof(Arrays, array))

static int run(VkattnRuntime* runtime, VkattnPlan* const plans[3], VkattnBuffer* buffer) {
    GUARDED(VkattnForwardArgs, forward, vkattn_forward_args_init);
    GUARDED(VkattnBackwardArgs, backward, vkattn_backward_args_init);
    GUARDED(VkattnCombineArgs, merge, vkattn_combine_args_init);
    GUARDED(VkattnRun, took, vkattn_run_init);
    forward.it.query = backward.it.query = AT(query);
    forward.it.key = backward.it.key = AT(key);
    forward.it.value = backward.it.value = AT(value);
    forward.it.out = backward.it.out = merge.it.parts = AT(out);
    forward.it.lse = backward.it.lse = merge.it.parts_lse = AT(lse);
    backward.it.dout = AT(dout);
    backward.it.dquery = AT(dquery);
    backward.it.dkey = AT(dkey);
    backward.it.dvalue = AT(dvalue);
    merge.it.out = AT(merged);
    merge.it.lse = AT(merged_lse);
    CALL(vkattn_runtime_run_forward(runtime, plans[0], &forward.it, &took.it, &error));
    EXPECT(took.it.submissions == 1);
    CALL(vkattn_runtime_run_backward(runtime, plans[1], &backward.it, &took.it, &error));
    CALL(vkattn_runtime_run_combine(runtime, plans[2], &merge.it, &took.it, &error));
    EXPECT(guards_hold());
    return 0;
}

static int check(void) {
    for (int i = 0; i < LSE * DIM_V; i++) {
        const float* const value = data.value + i / (2 * ROWS * DIM_V) * KEYS * DIM_V + i % DIM_V;
        const double mean = ((double)value[0] + (double)value[DIM_V] + (double)value[2 * DIM_V]) / KEYS;
        EXPECT(is_near(data.out[i], mean) && is_near(data.merged[i], mean));
    }
    for (int i = 0; i < LSE; i++) EXPECT(is_near(data.lse[i], log(3)) && is_near(data.merged_lse[i], log(6)));
    for (int i = 0; i < LSE * DIM; i++) EXPECT(is_near(data.dquery[i], 0));
    for (int i = 0; i < KV_HEADS * KEYS * DIM_V; i++) {
        const float* const dout = data.dout + i / (KEYS * DIM_V) * 2 * ROWS * DIM_V + i % DIM_V;
        double sum = 0;
        for (int row = 0; row < 2 * ROWS; row++) sum += (double)dout[row * DIM_V];
        EXPECT(is_near(data.dvalue[i], sum / KEYS));
    }
    return 0;
}

int main(void) {
    GUARDED(VkattnRuntimeOptions, options, vkattn_runtime_options_init);
    GUARDED(VkattnDeviceInfo, device, vkattn_device_info_init);
    VkattnRuntime* runtime = NULL;
    VkattnContext* context = NULL;
    VkattnPlan* plans[3] = {NULL, NULL, NULL};
    VkattnBuffer* buffer = NULL;
    uint32_t count = 0;
    CALL(vkattn_runtime_devices(&device.it, 1, &count, &error));
    EXPECT(count > 0 && device.it.name[0] != 0);
    CALL(vkattn_runtime_open(&options.it, &runtime, &error));
    EXPECT(guards_hold());
    if (make_context(vkattn_runtime_handles(runtime), &context) || make_plans(context, plans)) return 1;
    CALL(vkattn_buffer_create(runtime, sizeof data, &buffer, &error));
    fill(data.query, LSE * DIM);
    fill(data.value, KV_HEADS * KEYS * DIM_V);
    fill(data.dout, LSE * DIM_V);
    for (int i = 0; i < LSE; i++) data.lse[LSE + i] = logf(3);
    CALL(vkattn_buffer_write(buffer, 0, &data, sizeof data, &error));
    if (run(runtime, plans, buffer)) return 1;
    CALL(vkattn_buffer_read(buffer, 0, &data, sizeof data, &error));
    if (check()) return 1;
    vkattn_buffer_destroy(buffer);
    for (int i = 0; i < 3; i++) vkattn_plan_destroy(plans[i]);
    vkattn_context_destroy(context);
    vkattn_runtime_close(runtime);
    printf("vkattn %s: right\n", vkattn_version());
    return 0;
}
