/* vkattn in a C program with a Vulkan of its own. usage: consumer CACHE_FILE */
#include <stdio.h>
#include <stdlib.h>

#include "scene.h"

static VkattnError error;

static void require(VkattnStatus status, const char* what) {
    if (status != VKATTN_OK) fail(what, error.message);
}

static VkattnContext* make_context(Gpu* gpu, VkattnRequirements* needed) {
    VkattnContextInfo info;
    VkattnContext* context = NULL;
    vkattn_context_info_init(&info);
    info.get_instance_proc_addr = gpu->get;
    info.instance = gpu->instance;
    info.physical_device = gpu->physical;
    info.device = gpu->device;
    info.api_version = VK_API_VERSION_1_2;
    info.features = vkattn_requirements_features(needed);
    info.enabled_extension_count = vkattn_requirements_extensions(needed, &info.enabled_extensions);
    info.pipeline_cache = gpu->cache;
    require(vkattn_context_create(&info, &context, &error), "vkattn_context_create");
    return context;
}

static VkattnPlan* make_plan(VkattnContext* context, VkattnProblem problem, uint32_t parts,
                             const char* kernel) {
    VkattnOptions options;
    VkattnScratch scratch;
    VkattnPlan* plan = NULL;
    size_t length = 0;
    char* text;
    vkattn_options_init(&options);
    options.num_splits = parts;
    require(vkattn_plan_create(context, &problem, &options, &plan, &error), "vkattn_plan_create");
    vkattn_scratch_init(&scratch);
    require(vkattn_plan_scratch(plan, &scratch, &error), "vkattn_plan_scratch");
    if (scratch.size_bytes > SCRATCH_BYTES || 4u * SCRATCH % scratch.alignment_bytes != 0)
        fail("vkattn_plan_scratch", "more than there is");
    require(vkattn_plan_describe(plan, NULL, 0, &length, &error), "vkattn_plan_describe");
    text = malloc(length + 1);
    require(vkattn_plan_describe(plan, text, length + 1, &length, &error), "vkattn_plan_describe");
    scene_check_description(text, kernel);
    printf("%s\n", text);
    free(text);
    return plan;
}

int main(int argc, char** argv) {
    Gpu gpu;
    VkattnRequirements* needed = NULL;
    const char* const* extensions = NULL;
    uint32_t extension_count;
    VkattnContext* context;
    VkattnPlan *first, *second;
    VkattnForwardArgs args;
    int warm;
    if (argc != 2) fail("usage", "consumer CACHE_FILE");
    gpu_make_instance(&gpu);
    require(vkattn_requirements_create(gpu.get, gpu.instance, gpu.physical, &needed, &error), "requirements");
    extension_count = vkattn_requirements_extensions(needed, &extensions);
    gpu_make_device(&gpu, vkattn_requirements_features(needed), extension_count, extensions);
    warm = gpu_load_cache(&gpu, argv[1]);
    context = make_context(&gpu, needed);
    first = make_plan(context, scene_problem(), 0, "tiles");
    second = make_plan(context, scene_problem_2(), PARTS_2, "rows");

    gpu_make_buffer(&gpu, ALL_BYTES);
    scene_fill(&gpu);
    gpu_begin(&gpu);
    args = scene_args(&gpu, 0);
    require(vkattn_cmd_forward(gpu.commands, first, &args, &error), "vkattn_cmd_forward");
    scene_foreign_fill(&gpu);
    args = scene_args(&gpu, 1);
    require(vkattn_cmd_forward(gpu.commands, second, &args, &error), "vkattn_cmd_forward");
    scene_foreign_copy(&gpu);
    gpu_run(&gpu);
    scene_check(&gpu, 1e-5);
    scene_check_2(&gpu);

    gpu_save_cache(&gpu, argv[1]);
    vkattn_plan_destroy(first);
    vkattn_plan_destroy(second);
    vkattn_context_destroy(context);
    vkattn_requirements_destroy(needed);
    gpu_destroy(&gpu);
    printf("C, vkattn %s, %s: right\n", vkattn_version(), warm ? "pipelines from the cache" : "no cache yet");
    return 0;
}
