// Where the argument block lies, for kernels that always have one: its address is the push constant `arguments`. The
// other kernels include lib/operand_layout.glsl instead.
#define ARGUMENTS_ADDRESS push.arguments
#include "lib/sequences.glsl"
