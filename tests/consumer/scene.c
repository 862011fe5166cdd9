#include "scene.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

VkattnProblem scene_problem(void) {
    VkattnProblem p;
    vkattn_problem_init(&p);
    p.num_heads_q = p.num_heads_kv = HEADS;
    p.seqlen_q = ROWS;
    p.seqlen_kv = KEYS;
    p.head_dim_qk = p.head_dim_v = DIM;
    p.causal = 1;
    return p;
}

VkattnProblem scene_problem_2(void) {
    VkattnProblem p;
    vkattn_problem_init(&p);
    p.seqlen_q = 1;
    p.seqlen_kv = KEYS_2;
    p.head_dim_qk = p.head_dim_v = DIM_2;
    return p;
}

void scene_fill(Gpu* gpu) {
    uint32_t i, state = 1;
    for (i = 0; i < SCRATCH; i++) {
        state = state * 1664525u + 1013904223u;
        gpu->data[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

VkattnForwardArgs scene_args(const Gpu* gpu, int second) {
    VkattnForwardArgs args;
    vkattn_forward_args_init(&args);
    args.query = gpu->address + 4u * (second ? QUERY_2 : QUERY);
    args.key = gpu->address + 4u * (second ? KEY_2 : KEY);
    args.value = gpu->address + 4u * (second ? VALUE_2 : VALUE);
    args.out = gpu->address + 4u * (second ? OUT_2 : OUT);
    args.scratch_buffer = gpu->buffer;
    args.scratch_offset = 4u * SCRATCH;
    args.scratch_address = gpu->address + 4u * SCRATCH;
    return args;
}

void scene_foreign_fill(Gpu* gpu) {
    const float half = 0.5f;
    uint32_t word;
    memcpy(&word, &half, sizeof word);
    gpu->vkCmdFillBuffer(gpu->commands, gpu->buffer, 4u * VALUE_2, 4u * KEYS_2 * DIM_2, word);
    gpu_barrier(gpu, VK_PIPELINE_STAGE_TRANSFER_BIT | VKATTN_LAST_STAGES,
                VK_ACCESS_TRANSFER_WRITE_BIT | VKATTN_LAST_ACCESS, VKATTN_FIRST_STAGES, VKATTN_FIRST_ACCESS);
}

void scene_foreign_copy(Gpu* gpu) {
    const VkBufferCopy region = {4u * OUT_2, 4u * COPY, 4u * DIM_2};
    gpu_barrier(gpu, VKATTN_LAST_STAGES, VKATTN_LAST_ACCESS, VK_PIPELINE_STAGE_TRANSFER_BIT,
                VK_ACCESS_TRANSFER_READ_BIT);
    gpu->vkCmdCopyBuffer(gpu->commands, gpu->buffer, gpu->buffer, 1, &region);
}

/* The right answer for head dim d of row i. */
static double expected(const float* q, const float* k, const float* v, int i, int d) {
    double weight[KEYS], most = -INFINITY, sum = 0, all = 0;
    const int end = i + KEYS - ROWS + 1;
    int j, x;
    for (j = 0; j < end; j++) {
        weight[j] = 0;
        for (x = 0; x < DIM; x++) weight[j] += (double)q[i * DIM + x] * (double)k[j * DIM + x];
        weight[j] /= sqrt(DIM);
        if (weight[j] > most) most = weight[j];
    }
    for (j = 0; j < end; j++) {
        weight[j] = exp(weight[j] - most);
        sum += weight[j];
        all += weight[j] * (double)v[j * DIM + d];
    }
    return all / sum;
}

void scene_check(const Gpu* gpu, double tolerance) {
    int h, i, d;
    for (h = 0; h < HEADS; h++)
        for (i = 0; i < ROWS; i++)
            for (d = 0; d < DIM; d++) {
                const double right =
                    expected(gpu->data + QUERY + h * ROWS * DIM, gpu->data + KEY + h * KEYS * DIM,
                             gpu->data + VALUE + h * KEYS * DIM, i, d);
                if (!(fabs((double)gpu->data[OUT + (h * ROWS + i) * DIM + d] - right) < tolerance))
                    fail("the first problem", "its output is wrong");
            }
}

void scene_check_2(const Gpu* gpu) {
    int d;
    for (d = 0; d < DIM_2; d++)
        if (!(fabs((double)gpu->data[COPY + d] - 0.5) < 1e-6))
            fail("the second problem", "its output is wrong");
}

void scene_check_description(const char* json, const char* kernel) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "\"kernel\":\"%s\"", kernel);
    if (strstr(json, wanted) == NULL) fail("vkattn_plan_describe", json);
}
