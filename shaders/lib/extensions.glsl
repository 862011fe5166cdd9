// Extensions of GLSL that every kernel needs.
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#if (defined(F16) || defined(BF16)) && !defined(PACKED)
#extension GL_EXT_shader_16bit_storage : require
#endif
