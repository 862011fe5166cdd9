// Constants and push constants of the kernels that try single features of a driver. Included by GLSL and by C++.
#ifndef VKATTN_SHARED_DRIVER_CHECKS_H
#define VKATTN_SHARED_DRIVER_CHECKS_H

#ifdef __cplusplus
#include <cstdint>
namespace vkattn::shared {
using DriverAddress = uint64_t;
#else
#define DriverAddress uvec2
#define uint32_t uint  // the one name the languages do not share
#endif

struct DriverPush {
    DriverAddress from, to;      // a dispatch's own numbers, and its own results
    DriverAddress base, stride;  // driver_far: workgroup w has the place base + w * count * stride
    uint32_t count;              // rounds; driver_halves: halves that an invocation writes
    uint32_t slot;               // driver_far: the part of each place that this dispatch writes
};

#define DRIVER_THREADS 128  // the most that every device has

// driver_loops: its invocations, and what each iteration does with a number.
#define DRIVER_LOOP_THREADS 8
#define DRIVER_LOOP_FACTOR 1664525u
#define DRIVER_LOOP_SUMMAND 1013904223u

// The words that an invocation writes in driver_workgroup and driver_shuffles, and for each word that it reads in
// driver_denormals and driver_exponents.
#define DRIVER_WORKGROUP_WORDS 7
#define DRIVER_SHUFFLE_HEAD 7
#define DRIVER_SHUFFLE_STEPS 7  // masks of 1, 2 ... 64
#define DRIVER_SHUFFLE_STEP 6   // a vec4 and two words of two halves
#define DRIVER_SHUFFLE_WORDS (DRIVER_SHUFFLE_HEAD + DRIVER_SHUFFLE_STEPS * DRIVER_SHUFFLE_STEP)
#define DRIVER_DENORMAL_WORDS 5
#define DRIVER_EXPONENT_WORDS 2

// Specialization constants. The lengths of driver_shared's arrays follow from these:
#define DRIVER_SPEC_ROWS 0
#define DRIVER_SPEC_COLUMNS 1
// driver_matrix multiplies M x K by K x N in so many invocations.
#define DRIVER_SPEC_THREADS 0
#define DRIVER_SPEC_SUBGROUP_SIZE 1
#define DRIVER_SPEC_M 2
#define DRIVER_SPEC_N 3
#define DRIVER_SPEC_K 4
// The workgroup of driver_workgroup has these extents.
#define DRIVER_SPEC_WIDTH 0
#define DRIVER_SPEC_HEIGHT 1
// 1: two workgroups of driver_halves share each word.
#define DRIVER_SPEC_SPLIT 0

#ifdef __cplusplus
}  // namespace vkattn::shared
#endif
#endif
