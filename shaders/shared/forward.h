// What the forward kernels and the host agree on. Included by GLSL and by C++: each struct is declared once.
#ifndef VKATTN_SHARED_FORWARD_H
#define VKATTN_SHARED_FORWARD_H

#ifdef __cplusplus
#include <cstdint>
namespace vkattn::shared {
using uint = uint32_t;
using Address = uint64_t;
#else
#define Address uvec2  // 64-bit integers are not everywhere; buffer_reference_uvec2 needs none
#endif

// Push constants of every forward kernel: 128 bytes, the least that Vulkan guarantees.
// Strides are in bytes. Those of 4 GiB and more do not fit: they stand in WideStrides, at `extra`.
struct ForwardPush {
    Address query, key, value, outp, lse;  // lse may be 0: not wanted
    Address extra;                         // the argument block, 0 when the plan has none
    uint query_batch, query_head, query_seq;
    uint key_batch, key_head, key_seq;
    uint value_batch, value_head, value_seq;
    uint out_batch, out_head, out_seq;
    uint seqlen_q, seqlen_kv;
    uint heads;        // num_heads_q | group_size << 16
    float scale_log2;  // softmax_scale * log2(e); with a softcap softmax_scale / softcap
    int bound_lo;      // query row i sees key j only if i + bound_lo <= j <= i + bound_hi
    int bound_hi;
    float softcap_log2;  // softcap * log2(e); 0 = none
    uint first_head;     // of batch * num_heads_q: where this dispatch begins (a plan may work in pieces)
};

// The argument block: 64-bit strides in bytes, in the order batch, head, seq of query, key, value, out.
struct WideStrides {
    Address stride[12];
};

#ifdef __cplusplus
static_assert(sizeof(ForwardPush) == 128);
static_assert(sizeof(WideStrides) == 96);
#endif

// Specialization constants of the tile kernels (lib/tiles.glsl). ROWS, COLS, CHUNK and V_KEYS are multiples of 4.
#define SPEC_THREADS 0   // invocations of a workgroup
#define SPEC_LANES 1     // invocations that share a query row
#define SPEC_ROWS 2      // query rows of an invocation: tile_q = ROWS * THREADS / LANES
#define SPEC_COLS 3      // keys of an invocation: tile_kv = COLS * LANES
#define SPEC_CHUNK 4     // elements of head_dim_qk staged at a time
#define SPEC_P_BLOCKS 5  // groups of 4 columns of P that go through shared memory at a time
#define SPEC_V_KEYS 6    // keys of V staged at a time
#define SPEC_PREFETCH 7  // 1: load the next chunk into registers while computing
#define SPEC_UNROLL 8    // steps of the products unrolled, at most CHUNK and V_KEYS, which it divides
#define SPEC_HEAD_DIM_QK 9
#define SPEC_HEAD_DIM_V 10
#define SPEC_WIDE_LOADS 11    // 1: rows begin at multiples of 16 bytes
#define SPEC_WIDE_STRIDES 12  // 1: strides come from the argument block
#define SPEC_POOL_VEC4 13     // shared memory, in vec4, as the planner computed it
#define SPEC_SOFTCAP 14       // 1: the problem has one
#define SPEC_WIDE_ROWS 15     // 1: rows of a tile may lie 2^31 bytes apart
#define SPEC_COUNT 16

// Strides of the shared-memory regions in vec4; macros because they are constant expressions in both languages.
// A tile's rows lie four to a vec4, padded to an odd stride so that neighbouring lines start in different banks.
#define POOL_STRIDE(tile_rows) ((tile_rows) / 4 + 1 - (tile_rows) / 4 % 2)
#define POOL_V_STRIDE(head_dim_v, lanes) (((head_dim_v) + 4 * (lanes)-1) / (4 * (lanes)) * (lanes))

#ifdef __cplusplus
}  // namespace vkattn::shared
#endif
#endif
