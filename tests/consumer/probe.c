/* vkattn in a C program that has features of its own and wants matrix units: it merges the requirements into its chain,
 * probes the device at the first start, keeps the results in a file, and gives them to the context at later starts.
 * usage: consumer_probe PROBE_FILE */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scene.h"

static VkattnError error;

static void require(VkattnStatus status, const char* what) {
    if (status != VKATTN_OK) fail(what, error.message);
}

/* ---- the file: the text of vkattn_probe_results, which names its device and driver. Whatever the file holds is given
 * to the context, and what does not match is not used. */

typedef struct Text {
    char* data; /* null: there is none */
    size_t bytes;
} Text;

static Text load_text(const char* file) {
    Text text = {NULL, 0};
    FILE* const in = fopen(file, "rb");
    if (in == NULL) return text;
    fseek(in, 0, SEEK_END);
    text.bytes = (size_t)ftell(in);
    rewind(in);
    text.data = malloc(text.bytes + 1);
    if (fread(text.data, 1, text.bytes, in) != text.bytes) fail(file, "cannot be read");
    fclose(in);
    return text;
}

static void save_text(VkattnContext* context, const char* file) {
    FILE* const out = fopen(file, "wb");
    size_t length = 0;
    char* text;
    require(vkattn_probe_results(context, NULL, 0, &length, &error), "vkattn_probe_results");
    text = malloc(length + 1);
    require(vkattn_probe_results(context, text, length + 1, &length, &error), "vkattn_probe_results");
    if (out == NULL || fwrite(text, 1, length, out) != length || fclose(out) != 0)
        fail(file, "cannot be written");
    free(text);
}

/* ---- device, context, probe */

/* `own` is the chain that the device was created with. */
static VkattnContext* make_context(const Gpu* gpu, const void* own, Text known) {
    VkattnContextInfo info;
    VkattnContext* context = NULL;
    vkattn_context_info_init(&info);
    info.get_instance_proc_addr = gpu->get;
    info.instance = gpu->instance;
    info.physical_device = gpu->physical;
    info.device = gpu->device;
    info.api_version = VK_API_VERSION_1_2;
    info.features = own;
    info.probe_results = known.data;
    info.probe_results_bytes = known.bytes;
    require(vkattn_context_create(&info, &context, &error), "vkattn_context_create");
    return context;
}

/* Returns 1 if the device had something to probe that the context does not know yet. */
static int run_probe(Gpu* gpu, VkattnContext* context, const char* file) {
    const uint64_t bytes = vkattn_probe_size(context);
    float* const results = gpu->data + SCRATCH;
    if (bytes == 0) return 0;
    memset(results, 0, bytes);
    gpu_begin(gpu);
    require(vkattn_cmd_probe(gpu->commands, context, gpu->address + 4u * SCRATCH, &error),
            "vkattn_cmd_probe");
    gpu_run(gpu);
    require(vkattn_context_probed(context, results, bytes, &error), "vkattn_context_probed");
    save_text(context, file);
    return 1;
}

/* The first problem of the scene, with products on matrix units where the device has them. */
static void attend(Gpu* gpu, VkattnContext* context) {
    const VkattnProblem problem = scene_problem();
    const VkattnForwardArgs args = scene_args(gpu, 0);
    VkattnOptions options;
    VkattnPlan* plan = NULL;
    char text[4096];
    vkattn_options_init(&options);
    options.precision = VKATTN_PRECISION_FLOAT16;
    if (vkattn_plan_create(context, &problem, &options, &plan, &error) != VKATTN_OK)
        require(vkattn_plan_create(context, &problem, NULL, &plan, &error), "vkattn_plan_create");
    require(vkattn_plan_describe(plan, text, sizeof text, NULL, &error), "vkattn_plan_describe");
    printf("%s\n", text);
    gpu_begin(gpu);
    require(vkattn_cmd_forward(gpu->commands, plan, &args, &error), "vkattn_cmd_forward");
    gpu_run(gpu);
    vkattn_plan_destroy(plan);
}

int main(int argc, char** argv) {
    Gpu gpu;
    Text known;
    VkattnRequirements* needed = NULL;
    VkPhysicalDeviceVulkan12Features own = {0};
    const char* const* extensions = NULL;
    uint32_t extension_count;
    VkattnContext* context;
    const char* origin = "from the file";
    if (argc != 2) fail("usage", "consumer_probe PROBE_FILE");
    gpu_make_instance(&gpu);
    own.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
    own.timelineSemaphore = VK_TRUE; /* the application's, not vkattn's */
    require(vkattn_requirements_create(gpu.get, gpu.instance, gpu.physical, &needed, &error), "requirements");
    require(vkattn_requirements_merge(needed, &own, &error), "vkattn_requirements_merge");
    extension_count = vkattn_requirements_extensions(needed, &extensions);
    gpu_make_device(&gpu, &own, extension_count, extensions);
    gpu_make_buffer(&gpu, ALL_BYTES);
    known = load_text(argv[1]);
    context = make_context(&gpu, &own, known);
    if (run_probe(&gpu, context, argv[1]))
        origin = "made now";
    else if (known.data == NULL)
        origin = "not needed";
    scene_fill(&gpu);
    attend(&gpu, context);
    scene_check(&gpu, 5e-3);

    free(known.data);
    vkattn_context_destroy(context);
    vkattn_requirements_destroy(needed);
    gpu_destroy(&gpu);
    printf("the probe was %s: right\n", origin);
    return 0;
}
