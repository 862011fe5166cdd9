// Extensions of GLSL that the matrix kernels need beyond lib/extensions.glsl.
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#if defined(F16) || defined(F16_OPERANDS)
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#else
#extension GL_EXT_bfloat16 : require
#extension GL_EXT_spirv_intrinsics : require
#endif
#ifdef TURNED
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#ifdef F16  // such units have them, all that the probe finds
#define ROUNDED_ACCUMULATORS
#endif
#endif
#ifdef COOPMAT2
#extension GL_NV_cooperative_matrix2 : require
#endif
