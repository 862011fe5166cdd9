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
// Strides are in bytes. Where they do not fit, or the problem has more to say, all of them stand in ForwardArguments,
// whose address then takes the place of query_batch (low word) and query_head.
struct ForwardPush {
    Address query, key, value, outp, lse;  // lse may be 0: not wanted
    uint query_batch, query_head, query_seq;
    uint key_batch, key_head, key_seq;
    uint value_batch, value_head, value_seq;
    uint out_batch, out_head, out_seq;  // a part of the keys (SPEC_SPLIT): out_seq is batch * num_heads_q
    uint seqlen_q, seqlen_kv;
    uint heads;          // num_heads_q | group_size << 16
    float scale_log2;    // softmax_scale * log2(e); with a softcap softmax_scale / softcap
    float softcap_log2;  // softcap * log2(e); 0 = none
    int bound_lo;  // query row i sees key j only if i + bound_lo <= j <= i + bound_hi; with kv lengths or offsets
    int bound_hi;     // per batch, these are added (INT_MIN and INT_MAX stay: unbounded)
    uint first_head;  // where this dispatch begins: of batch * num_heads_q (packed: * num_heads_kv) heads,
    uint first_tile;  // of the query tiles, counted from the last,
    uint splits;      // of the parts of the keys | tiles of keys in a part << 16; 0 = there are no parts
};

// The argument block.
struct ForwardArguments {
    Address stride[12];      // bytes, in the order batch, head, seq of query, key, value, out
    Address mask_stride[3];  // elements, in the order batch, head, seq; 0 = broadcast
    Address mask;
    // Those that are present; the others are the address of the block: drivers load ahead of a test (lavapipe 26.1 does,
    // where an address is the same for all), and what they load must be there.
    Address classes, kv_lengths, query_offsets;
    uint key_limit;       // keys from here on are hidden: the mask's last extent, or seqlen_kv
    uint mask_key_step;   // 0: one mask element for all keys of a row
    uint follow_lengths;  // 1: the batch's kv length is added to the bounds
    // Of the classes of mask tiles, those of this many heads and batches: 1, or all (packed: kv heads).
    uint class_heads, class_batches;
    uint present;  // PRESENT_*
};
#define PRESENT_CLASSES 1u
#define PRESENT_KV_LENGTHS 2u
#define PRESENT_QUERY_OFFSETS 4u

// What is known of a tile of the mask, in ForwardArguments.classes: one for each mask head and batch, query tile, key
// tile.
#define CLASS_HIDDEN 0u  // no row sees any key
#define CLASS_MIXED 1u
#define CLASS_VISIBLE 2u  // nothing hidden, nothing added

// What the backward kernels have instead of it. Their push constants are a ForwardPush, of which query, key and value
// are used, and
//   outp     of backward_delta: out
//   out_batch, out_head, out_seq   with SPEC_SAVED: the first tile of a workgroup's loop that this dispatch does, the
//                                  first that it leaves, SPAN_* bits
//   splits   of backward_mask: the first tile of keys; of backward_query and backward_key_value: the first slice
//   first_head, first_tile   where this dispatch begins, counted upwards: of backward_key_value kv heads and tiles of keys,
//                            of backward_mask heads of the mask, of backward_delta groups of rows; else as ForwardPush
struct BackwardArguments {
    ForwardArguments forward;
    Address stride[12];  // bytes, in the order batch, head, seq of dout, dquery, dkey, dvalue
    Address dout, lse, dlse, dquery, dkey, dvalue, dbias;
    Address statistics;  // vec4 (batch, num_heads_q, seqlen_q): see lib/backward_problem.glsl
    Address saved;       // SPEC_SAVED: float32 accumulators between dispatches
    Address padding;
    float scale;                      // softmax_scale
    uint dbias_heads, dbias_batches;  // 1, or all
    uint dbias_queries;               // 1, or seqlen_q
    uint dbias_keys;                  // the mask's last extent
    uint batch;
};
#define SPAN_FIRST 1u  // accumulators begin at 0
#define SPAN_LAST 2u   // they are the result

// Push constants of the combine kernel. Strides in bytes.
struct CombinePush {
    Address parts, parts_lse, outp, lse;
    Address part_stride, part_batch, part_head, part_seq, out_batch, out_head, out_seq;
    uint num_parts, num_heads, seqlen_q;
    uint num_heads_all;           // of all batches
    uint first_head, first_rows;  // where this dispatch begins: heads of all batches, workgroups of rows
};

#ifdef __cplusplus
static_assert(sizeof(ForwardPush) == 128);
static_assert(sizeof(ForwardArguments) == 176);
static_assert(sizeof(CombinePush) == 112);
static_assert(sizeof(BackwardArguments) == 376);
#endif

// Specialization constants of the tile kernels (lib/tiles.glsl). ROWS, COLS, CHUNK and V_KEYS are multiples of 4.
#define SPEC_THREADS 0   // invocations of a workgroup
#define SPEC_LANES 1     // invocations that share a query row
#define SPEC_ROWS 2      // query rows of an invocation: tile_q = ROWS * THREADS / LANES
#define SPEC_COLS 3      // keys of an invocation: tile_kv = COLS * LANES
#define SPEC_CHUNK 4     // elements of head_dim_qk staged at a time
#define SPEC_P_BLOCKS 5  // groups of 4 columns of P that go through shared memory at a time
#define SPEC_V_KEYS 6    // keys of V staged at a time
#define SPEC_PREFETCH 7  // 1: load the next chunk into registers while computing; not with SPEC_ROLLED
#define SPEC_UNROLL 8    // steps of the products unrolled, at most CHUNK and V_KEYS, which it divides
#define SPEC_HEAD_DIM_QK 9
#define SPEC_HEAD_DIM_V 10
#define SPEC_WIDE_LOADS 11  // 1: rows begin at multiples of 4 elements
#define SPEC_ARGUMENTS 12   // 1: there is an argument block
#define SPEC_POOL_VEC4 13   // shared memory, in vec4, as the planner computed it
#define SPEC_SOFTCAP 14     // 1: the problem has one
#define SPEC_WIDE_ROWS 15   // 1: rows of a tile may lie 2^31 bytes apart
#define SPEC_PACK 16        // 1: a tile's rows are those of a kv head's group: row i * group_size + head
#define SPEC_MASK 17        // MASK_*
#define SPEC_SPLIT \
    18  // 1: out is a float32 part, (part, batch, num_heads_q, seqlen_q, head_dim_v); lse row_max and row_sum
#define SPEC_ROLLED 19  // 1: for CPUs. No constant: a kernel's other module, see lib/constants.glsl
#define SPEC_SAVED 20   // 1: backward accumulators are kept in scratch between dispatches
#define SPEC_DLSE 21    // 1: the lse has an incoming gradient
#define SPEC_SLICES \
    22  // of a backward's gradients: each has these workgroups for it, with as many head dims each
// The matrix kernel (lib/matrix.glsl) has THREADS, CHUNK, HEAD_DIM_*, WIDE_LOADS (2: rows begin at multiples of 16 bytes),
// ARGUMENTS .. SPLIT and SLICES (of the output's head dims, a workgroup each), and
#define SPEC_SUBGROUP_SIZE 1
#define SPEC_ROW_BLOCKS 2  // blocks of M query rows that a subgroup has
#define SPEC_TILE_KV 3
#define SPEC_Q_HELD 5    // steps of K head dims of Q that stay in registers; the rest lies in shared memory
#define SPEC_MATRIX_M 6  // the shape of the matrix unit: M x K times K x N
#define SPEC_MATRIX_N 7
#define SPEC_MATRIX_K 8
#define SPEC_P_MOVE 20       // MOVE_*
#define SPEC_RUNNING_MAX 21  // 1: rows never depend on other rows of their tile
#define SPEC_LAYOUT 23       // of an accumulator's elements; 0: not known. See lib/matrix_layout.glsl
#define SPEC_PARTS 24        // in which the keys of a tile are multiplied, by the matrix kernel: 1 or 2
#define SPEC_MASK_UNIT 25    // rows of a mask lie multiples of these bytes apart, a power of two up to 16
#define SPEC_SECTION 26      // KiB of K and V that workgroups go through together; 0: all heads
#define SPEC_LEVEL 27  // workgroups of such a section, at least, where query tiles have different lengths
#define SPEC_COUNT 28

// How the matrix kernel makes P, an accumulator, the left operand of P . V.
#define MOVE_FRAGMENT 0      // element by element: both have the same layout
#define MOVE_CONVERT 1       // VK_NV_cooperative_matrix2 converts
#define MOVE_SHARED 2        // through shared memory, by way of 16-bit accumulators
#define MOVE_SHARED_FLOAT 3  // through shared memory, where there are none

// The combine kernel has these of them: THREADS, LANES, UNROLL (parts), HEAD_DIM_V, WIDE_LOADS, WIDE_ROWS, and
#define SPEC_TEAMS 2           // of the invocations of a row: each merges every TEAMS-th step of parts
#define SPEC_PARTS_FLOAT32 12  // 1: parts are float32 whatever out is
#define SPEC_PARTS_MAX_SUM 13  // 1: for an lse, parts have row_max and row_sum, in base 2

#define MASK_NONE 0
#define MASK_BOOL 1
#define MASK_FLOAT 2

// Strides of the shared-memory regions in vec4; macros because they are constant expressions in both languages.
// A tile's rows lie four to a vec4, padded to an odd stride so that neighbouring lines start in different banks.
#define POOL_STRIDE(tile_rows) ((tile_rows) / 4 + 1 - (tile_rows) / 4 % 2)
#define POOL_V_STRIDE(head_dim_v, lanes) (((head_dim_v) + 4 * (lanes)-1) / (4 * (lanes)) * (lanes))
// Of one of `slices` equal parts of the head dims.
#define POOL_SLICE_STRIDE(head_dim, lanes, slices) (POOL_V_STRIDE(head_dim, (lanes) * (slices)) / (slices))

// Results of probe_matrix.comp, in words: for each of two matrices, how many elements an invocation has, then their places.
#define PROBE_INVOCATIONS 128
#define PROBE_ELEMENTS 64
#define PROBE_WORDS (1 + PROBE_INVOCATIONS * PROBE_ELEMENTS)

// Shared memory of the matrix kernel in vec4. Rows of 16-bit elements and of floats: odd strides, whole vec4.
#define MATRIX_STEPS(extent, step) (((extent) + (step)-1) / (step))
#define MATRIX_STRIDE(elements) (MATRIX_STEPS(elements, 8) | 1)
#define MATRIX_FLOAT_STRIDE(elements) ((elements) / 4 | 1)

#ifdef __cplusplus
}  // namespace vkattn::shared
#endif
#endif
