// For kernels that always have an argument block: its address is the push constant `arguments`. The
// other kernels include lib/operand_layout.glsl instead.
#define ARGUMENTS_ADDRESS push.arguments
#include "lib/sequences.glsl"
