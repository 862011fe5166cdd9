// Declares what the kernels and the host agree on beside the kernels' interfaces (kernels.def): argument blocks,
// values of constants, sizes of shared memory. Included by GLSL and by C++, so that each is declared once.
#ifndef VKATTN_SHARED_KERNELS_H
#define VKATTN_SHARED_KERNELS_H

#ifdef __cplusplus
#include <cstddef>
#include <cstdint>
namespace vkattn::shared {
using uint = uint32_t;
using Address = uint64_t;
#else
#define Address uvec2  // 64-bit integers are not everywhere; buffer_reference_uvec2 needs none
#endif

// The argument block: what has no room among the push constants, or only some problems have.
struct ForwardArguments {
    Address stride[12];      // bytes, in the order batch, head, seq of query, key, value, out
    Address mask_stride[3];  // elements, in the order batch, mask head, seq; 0 = broadcast
    Address mask;
    // The arrays that are absent have the address of the block: drivers load ahead of a test (lavapipe 26.1
    // does where an address is the same for all invocations), and what they load must be there. The mask
    // needs no such address, because MASK_KIND is a specialization constant.
    Address classes;
#define ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text) Address name;
#define FORWARD_ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text)
#include "interface/arrays.def"
    uint key_limit;        // keys from here on are hidden: the mask's last extent, or seqlen_kv
    uint mask_key_step;    // 0: one mask element for all keys of a row
    uint mask_group_size;  // query heads that read the same mask head
    uint follow_lengths;   // 1: the batch's kv length is added to the bounds
    uint
        class_heads;  // heads that have classes of mask tiles or links of their own, for as many query heads each
    uint class_batches;  // batches that have: 1, or all
    uint present;        // PRESENT_*
    int position;  // query row i stands at key position i + this + what follow_lengths and query_offsets add
    uint slopes_per_batch;        // 1: each batch has slopes of its own
    uint block_rows, block_keys;  // of a block of the block map
    uint maps;                    // heads that have blocks of their own, and 1 << 16 if batches have
};
// A dispatch of write_arguments.comp writes this much of an argument block: as many words as fit the push constants.
#define ARGUMENT_PART_BYTES 112u
const uint PRESENT_CLASSES = 1;
#define ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text) \
    const uint PRESENT_##NAME = present;
#define FORWARD_ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text)
#include "interface/arrays.def"

// The class of a tile of the mask, in ForwardArguments.classes: one for each mask head and batch, query tile, key tile.
#define CLASS_HIDDEN 0u  // no row sees any key
#define CLASS_MIXED 1u   // anything else
#define CLASS_PLAIN 2u   // nothing is hidden, and nothing added

// A loop over tiles knows a block map by links: each tile has a word, its link. The link has the tile's class, and the
// number and the class of the next tile behind it that is not hidden. If there is none, that number is the number of
// tiles. It fits 28 bits, because links have room for 2^26 tiles (add_tile_links() in src/plan/classes.cpp).
#define LINK_OF(kind, next_kind, next) ((kind) | (next_kind) << 2 | (next) << 4)
#define LINK_CLASS(link) ((link)&3u)
#define LINK_NEXT_CLASS(link) ((link) >> 2 & 3u)
#define LINK_NEXT(link) ((link) >> 4)

// A split tells combine.comp these floats of a row: its maximum, its sum and, where scores are shifted, by how much.
#define PART_FLOATS(shifts_rows) ((shifts_rows) ? 3 : 2)

// The backward's argument block.
struct BackwardArguments {
    ForwardArguments forward;
    Address stride[12];  // bytes, in the order batch, head, seq of dout, dquery, dkey, dvalue
    Address dout, lse;
#define BACKWARD_ARRAY(name, role, bytes, count, asked) Address name;
#include "interface/arrays.def"
    Address dquery, dkey, dvalue;
    Address statistics;    // vec4 (batch, num_heads_q, seqlen_q): see lib/backward_problem.glsl
    Address accumulators;  // float32, kept between dispatches (is_resumed)
    // The pass for dquery follows the first links, that for dkey and dvalue the others (lib/tile_links.glsl).
    Address query_links, key_links;
    Address tile_states;  // of each query tile a uint, TILE_SPILLED, TILE_ODD or TILE_NONFINITE
    float scale;          // softmax_scale
    uint dbias_heads;     // the mask's
    uint dbias_batches;   // 1, or all
    uint dbias_queries;   // 1, or seqlen_q
    uint dbias_keys;      // the mask's last extent
    uint batch;
};
#ifdef __cplusplus  // C++ has no padding behind the last members: GLSL has none either
static_assert(offsetof(ForwardArguments, maps) + 4 == sizeof(ForwardArguments));
static_assert(offsetof(BackwardArguments, batch) + 4 == sizeof(BackwardArguments));
#endif

// Splits of the keys are not made smaller than this where nobody asked for their number. A guess, not measured: below,
// a split's start and merge should cost more than they save.
#define LEAST_KEYS_OF_SPLIT 256u

// Storage types of operands.
#define TYPE_FLOAT32 0
#define TYPE_FLOAT16 1
#define TYPE_BFLOAT16 2
// Only key and value may have the following ones (lib/quantised.glsl). These are ggml's blocks of 32 elements.
#define TYPE_Q8_0 16
#define TYPE_Q4_0 17
#define TYPE_Q4_1 18
#define TYPE_Q5_0 19
#define TYPE_Q5_1 20
#define TYPE_IQ4_NL 21
// These are single bytes, which a scale in an array beside the tensor multiplies.
#define TYPE_INT8 22
#define TYPE_E4M3 23
#define TYPE_E5M2 24

// Rows that a workgroup of decode_rows.comp decodes: enough for several elements an invocation. This was not measured.
#define DECODED_ROWS 64u

// The addresses of scales begin at these words of operand_layout (lib/operand_layout.glsl).
#define WORD_OF_KEY_SCALES 4u
#define WORD_OF_VALUE_SCALES 6u

// Kinds of scales: they have the numbers of VkattnScales.
#define SCALES_NONE 0
#define SCALES_ONE 1
#define SCALES_PER_HEAD 2
#define SCALES_PER_ROW 3

// Who finds dquery of a tile, and for which tiles backward_matrix_query.comp does it.
#define TILE_SPILLED 0    // backward_matrix_spilled.comp, from the dS that was spilled
#define TILE_ODD 1        // backward_matrix_query.comp, before dS is spilled
#define TILE_NONFINITE 2  // the same, afterwards, because a sum of spilled dS was not finite
#define TILES_ALL 3       // nothing is spilled

// Kinds of mask.
#define MASK_NONE 0
#define MASK_BOOL 1
#define MASK_FLOAT 2

// To what slopes are applied (VkattnSlopes).
#define SLOPES_NONE 0
#define SLOPES_DISTANCE 1
#define SLOPES_MASK 2

// How the matrix kernel makes P, an accumulator, the left operand of P . V.
#define MOVE_FRAGMENT 0      // element by element: both have the same layout
#define MOVE_CONVERT 1       // VK_NV_cooperative_matrix2 converts
#define MOVE_SHARED 2        // through shared memory, by way of 16-bit accumulators
#define MOVE_SHARED_FLOAT 3  // through shared memory, where there are none

// Strides of shared memory in vec4; macros because they are constant expressions in both languages. A tile's rows lie
// four to a vec4, padded to an odd stride so that neighbouring lines start in different banks.
#define POOL_STRIDE(tile_rows) ((tile_rows) / 4 + 1 - (tile_rows) / 4 % 2)
#define POOL_V_STRIDE(head_dim_v, lanes) (((head_dim_v) + 4 * (lanes)-1) / (4 * (lanes)) * (lanes))
// The stride of one of `slices` equal slices of the head dims.
#define POOL_SLICE_STRIDE(head_dim, lanes, slices) (POOL_V_STRIDE(head_dim, (lanes) * (slices)) / (slices))

// Shared memory of the matrix kernel in vec4. Rows of 16-bit elements and of floats: odd strides, whole vec4.
#define MATRIX_STEPS(extent, step) (((extent) + (step)-1) / (step))
// True if a forward with a running maximum stages V where K was: a workgroup is one subgroup, and no row has padding.
#define MATRIX_SHARES_PLACE(subgroups, chunk, chunks, head_dim_qk, out_span, slices, head_dim_v)       \
    ((subgroups) == 1                                                                                  \
         ? ((chunks) == 1 ? ((chunk) == (head_dim_qk) ? (out_span) * (slices) == (head_dim_v) : false) \
                          : false)                                                                     \
         : false)
#define MATRIX_STRIDE(elements) (MATRIX_STEPS(elements, 8) | 1)
#define MATRIX_FLOAT_STRIDE(elements) ((elements) / 4 | 1)
// Turned products have rows an odd number of 8 bytes apart. The elements of a row are whole vec4.
#define TURNED_STRIDE(elements) ((elements) / 4 | 1)
// The numbers 0, 1, 2 ... as floats, from which a kernel finds the place of an element of an m x n matrix.
#define MATRIX_PLACES(m, n) MATRIX_STEPS((m) > (n) ? (m) : (n), 4)

// Results of probe_matrix.comp, in words: for each of three matrices, how many elements an invocation has, then their
// places.
#define PROBE_INVOCATIONS 128
#define PROBE_ELEMENTS 64
#define PROBE_WORDS (1 + PROBE_INVOCATIONS * PROBE_ELEMENTS)

#ifdef __cplusplus
}  // namespace vkattn::shared
#endif
#endif
