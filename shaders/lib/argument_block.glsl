// Where tensors lie, for kernels that always have an argument block and its address among the push constants.
#define ARGUMENTS_ADDRESS push.arguments
#include "lib/sequences.glsl"
