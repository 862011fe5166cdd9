/* The programs compute this in one buffer and one command buffer: causal attention of some queries; then the value
 * of a second problem is overwritten by a fill of the application's own, and one query attends to it; then its output
 * is copied. Offsets are in floats. */
#ifndef SCENE_H
#define SCENE_H

#include "gpu.h"
#include "vkattn/vkattn.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    HEADS = 2,
    ROWS = 37,
    KEYS = 53,
    DIM = 40, /* the first */
    KEYS_2 = 700,
    DIM_2 = 64,
    PARTS_2 = 3, /* the second: one query, its keys in parts, which takes scratch */
    QUERY = 0,
    KEY = QUERY + HEADS * ROWS * DIM,
    VALUE = KEY + HEADS * KEYS * DIM,
    OUT = VALUE + HEADS * KEYS * DIM,
    QUERY_2 = OUT + HEADS * ROWS * DIM,
    KEY_2 = QUERY_2 + DIM_2,
    VALUE_2 = KEY_2 + KEYS_2 * DIM_2,
    OUT_2 = VALUE_2 + KEYS_2 * DIM_2,
    COPY = OUT_2 + DIM_2,
    SCRATCH = (COPY + DIM_2 + 63) / 64 * 64,
    SCRATCH_BYTES = 1 << 20,
    ALL_BYTES = SCRATCH * 4 + SCRATCH_BYTES
};

VkattnProblem scene_problem(void);
VkattnProblem scene_problem_2(void);
void scene_fill(Gpu* gpu);
/* The first's addresses, or the second's. */
VkattnForwardArgs scene_args(const Gpu* gpu, int second);
void scene_foreign_fill(Gpu* gpu); /* recorded behind the first */
void scene_foreign_copy(Gpu* gpu); /* behind the second */
/* Against a plain loop in double, and the value that every key of the second has; end the program where it is wrong. */
void scene_check(const Gpu* gpu, double tolerance);
void scene_check_2(const Gpu* gpu);
void scene_check_description(const char* json, const char* kernel);

#ifdef __cplusplus
}
#endif
#endif
