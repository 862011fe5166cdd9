// Specialization constants that all attention kernels have; meanings in shared/forward.h.
layout(local_size_x_id = SPEC_THREADS) in;
layout(constant_id = SPEC_THREADS) const uint THREADS = 64;
layout(constant_id = SPEC_HEAD_DIM_QK) const uint HEAD_DIM_QK = 64;
layout(constant_id = SPEC_HEAD_DIM_V) const uint HEAD_DIM_V = 64;
layout(constant_id = SPEC_WIDE_LOADS) const uint WIDE_LOADS = 1;
layout(constant_id = SPEC_ARGUMENTS) const uint ARGUMENTS = 0;
layout(constant_id = SPEC_WIDE_ROWS) const uint WIDE_ROWS = 0;
layout(constant_id = SPEC_SOFTCAP) const uint SOFTCAP = 0;
layout(constant_id = SPEC_PACK) const uint PACK = 0;
layout(constant_id = SPEC_MASK) const uint MASK = MASK_NONE;
layout(constant_id = SPEC_SPLIT) const uint SPLIT = 0;
layout(constant_id = SPEC_SLICES) const uint SLICES = 1;
layout(constant_id = SPEC_POOL_VEC4) const uint POOL_VEC4 = 1024;

uint thread = gl_LocalInvocationIndex;
