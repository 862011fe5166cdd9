/* A program in C without a Vulkan of its own: one key, so that the output is its value.
 * usage: consumer_runtime_c */
#include <math.h>
#include <stdio.h>
#include <vkattn/runtime.h>

enum { dim = 8 };

static const float value[dim] = {1, 2, 3, 4, 5, 6, 7, 8};

/* After the first failure nothing is called any more but what destroys. */
static VkattnStatus run(VkattnRuntime* runtime, float out[dim], VkattnError* error) {
    VkattnProblem problem;
    VkattnForwardArgs args;
    VkattnPlan* plan = NULL;
    VkattnBuffer *in = NULL, *result = NULL;
    VkattnStatus status;
    vkattn_problem_init(&problem);
    vkattn_forward_args_init(&args);
    problem.seqlen_q = problem.seqlen_kv = 1;
    problem.head_dim_qk = problem.head_dim_v = dim;
    status = vkattn_plan_create(vkattn_runtime_context(runtime), &problem, NULL, &plan, error);
    if (status == VKATTN_OK) status = vkattn_buffer_create(runtime, sizeof value, &in, error);
    if (status == VKATTN_OK) status = vkattn_buffer_create(runtime, sizeof value, &result, error);
    if (status == VKATTN_OK) status = vkattn_buffer_write(in, 0, value, sizeof value, error);
    args.query = args.key = args.value = vkattn_buffer_address(in);
    args.out = vkattn_buffer_address(result);
    if (status == VKATTN_OK) status = vkattn_runtime_run_forward(runtime, plan, &args, NULL, error);
    if (status == VKATTN_OK) status = vkattn_buffer_read(result, 0, out, sizeof value, error);
    vkattn_buffer_destroy(result);
    vkattn_buffer_destroy(in);
    vkattn_plan_destroy(plan);
    return status;
}

int main(void) {
    VkattnRuntime* runtime = NULL;
    VkattnError error;
    float out[dim] = {0};
    int wrong = 0;
    if (vkattn_runtime_open(NULL, &runtime, &error) != VKATTN_OK || run(runtime, out, &error) != VKATTN_OK) {
        printf("failed: %s: %s\n", error.field, error.message);
        vkattn_runtime_close(runtime);
        return 1;
    }
    for (int i = 0; i < dim; i++) wrong |= fabsf(out[i] - value[i]) > 1e-6f;
    printf("runtime in C on %s: %s\n", vkattn_runtime_device(runtime)->name, wrong ? "wrong" : "right");
    vkattn_runtime_close(runtime);
    return wrong;
}
