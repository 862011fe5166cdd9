// Extensions of GLSL that every kernel needs.
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

// Some operand is stored in 16 bits, so that the module has memory accesses of that size.
#if defined(F16) || defined(BF16)
#define HAS_16BIT
#endif
#if defined(HAS_16BIT) && !defined(PACKED)
#extension GL_EXT_shader_16bit_storage : require
#endif
