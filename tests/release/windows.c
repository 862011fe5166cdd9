/* Two things differ on Windows: no memory or semaphore is exported, and the pipeline cache's name is UTF-8, whatever
 * the code page. tests/release/run looks for that file. */
#include <stdio.h>
#include <vkattn/runtime.h>

/* Prints what else happened than a refusal. */
static int is_refused(const char* what, VkattnStatus status, const VkattnError* error) {
    if (status == VKATTN_UNSUPPORTED) return 1;
    printf("%s: %s %s: %s\n", what, vkattn_status_name(status), error->field, error->message);
    return 0;
}

/* A plan's pipelines are what the cache gets. */
static VkattnStatus plan(VkattnRuntime* runtime, VkattnPlan** made, VkattnError* error) {
    VkattnProblem problem;
    vkattn_problem_init(&problem);
    problem.seqlen_q = problem.seqlen_kv = 1;
    problem.head_dim_qk = problem.head_dim_v = 8;
    return vkattn_plan_create(vkattn_runtime_context(runtime), &problem, NULL, made, error);
}

int main(void) {
    VkattnPlan* made = NULL;
    VkattnRuntimeOptions options;
    VkattnRuntime* runtime = NULL;
    VkattnBuffer* buffer = NULL;
    VkattnSemaphore* semaphore = NULL;
    VkattnError error;
    int fd = -1, right = 0;
    vkattn_runtime_options_init(&options);
    options.pipeline_cache = "Z:/archives/\xC3\x84\xE6\x9D\xB1.cache";
    if (vkattn_runtime_open(&options, &runtime, &error) != VKATTN_OK ||
        plan(runtime, &made, &error) != VKATTN_OK ||
        vkattn_semaphore_create(runtime, 0, &semaphore, &error) != VKATTN_OK) {
        printf("failed: %s: %s\n", error.field, error.message);
    } else {
        right = is_refused("memory", vkattn_buffer_create_exportable(runtime, 64, &buffer, &error), &error) &&
                is_refused("semaphore", vkattn_semaphore_export(semaphore, &fd, &error), &error);
    }
    if (right) printf("%s: right\n", error.message);
    vkattn_buffer_destroy(buffer);
    vkattn_semaphore_destroy(semaphore);
    vkattn_plan_destroy(made);
    vkattn_runtime_close(runtime);
    return !right;
}
