// Extensions of GLSL that every kernel needs.
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

// Some operand is stored in 16 bits, so that the module has memory accesses of that size.
#if defined(F16) || defined(BF16) || defined(MIXED)
#define HAS_16BIT
#endif
#if defined(HAS_16BIT) && !defined(PACKED)
#extension GL_EXT_shader_16bit_storage : require
#endif
// 16-bit dot products: lib/dot2.glsl.
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BF16
#extension GL_EXT_bfloat16 : require
#endif
#endif
