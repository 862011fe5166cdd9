/* The plain data of vkattn: statuses, a problem, its options. Knows nothing of Vulkan, so that the planner can be
 * compiled, and tested, without it. Included by vkattn.h, where the contract stands. */
#ifndef VKATTN_TYPES_H
#define VKATTN_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Limits of one problem. */
#define VKATTN_MAX_HEAD_DIM 576u
#define VKATTN_MAX_SEQLEN (1u << 30)
#define VKATTN_MAX_HEADS 65535u

typedef enum VkattnStatus {
    VKATTN_OK = 0,
    VKATTN_INVALID_ARGUMENT = 1, /* the named field is wrong, on any device */
    VKATTN_UNSUPPORTED =
        2, /* the problem is legal, this device or version cannot do it; the message says why */
    VKATTN_OUT_OF_HOST_MEMORY = 3,
    VKATTN_DEVICE_ERROR = 4,   /* a Vulkan call failed; vk_result tells which way */
    VKATTN_INTERNAL_ERROR = 5, /* a fault of the library; please report the message */
    VKATTN_DEVICE_LOST = 6,    /* the VkDevice is lost: nothing of it can be used again, only destroyed */
    VKATTN_STATUS_MAX_ENUM = 0x7fffffff
} VkattnStatus;

/* Filled by every function that takes one, also on success. May be null. The text is one line without a newline. */
typedef struct VkattnError {
    VkattnStatus status;
    int32_t vk_result; /* the VkResult of the failing Vulkan call, else 0 */
    char field[64];    /* the argument at fault, as in "problem.num_heads_kv"; "" where none is */
    char message[320]; /* what is wrong with it */
} VkattnError;

typedef enum VkattnDtype {
    VKATTN_DTYPE_FLOAT32 = 0,
    VKATTN_DTYPE_FLOAT16 = 1,
    VKATTN_DTYPE_BFLOAT16 = 2,
    /* The following types are for key and value of a forward. head_dim and strides, which count elements, must be
     * multiples of 32, and addresses multiples of 2 bytes. First come ggml's blocks of 32 elements along head_dim, bit
     * for bit as it stores them, of 34, 18, 20, 22, 24 and 18 bytes. Kernels read whole aligned words of 4 bytes: where
     * a tensor begins or ends within a word, the 2 bytes beside it must be there, too, and have no effect. */
    VKATTN_DTYPE_Q8_0 = 16,
    VKATTN_DTYPE_Q4_0 = 17,
    VKATTN_DTYPE_Q4_1 = 18,
    VKATTN_DTYPE_Q5_0 = 19,
    VKATTN_DTYPE_Q5_1 = 20,
    VKATTN_DTYPE_IQ4_NL = 21,
    /* These are single bytes, which problem.key_scales or problem.value_scales multiplies: signed integers, and the
     * OCP's 8-bit floats, e4m3 without infinity ("e4m3fn") and e5m2. Kernels load 32 of them like a block. */
    VKATTN_DTYPE_INT8 = 22,
    VKATTN_DTYPE_FLOAT8_E4M3 = 23,
    VKATTN_DTYPE_FLOAT8_E5M2 = 24,
    VKATTN_DTYPE_SAME = 255, /* the operand has the type of problem.dtype */
    VKATTN_DTYPE_MAX_ENUM = 0x7fffffff
} VkattnDtype;

/* Where query row i stands among the keys: at key position i + offset. */
typedef enum VkattnAlign {
    VKATTN_ALIGN_BOTTOM_RIGHT =
        0,                     /* offset = len_kv - seqlen_q, with the batch's own kv length (the default) */
    VKATTN_ALIGN_TOP_LEFT = 1, /* offset = 0 */
    VKATTN_ALIGN_OFFSET = 2,   /* offset = problem.query_offset; may be negative */
    VKATTN_ALIGN_OFFSETS = 3,  /* one offset per batch, int32 in device memory: args.query_offsets */
    VKATTN_ALIGN_MAX_ENUM = 0x7fffffff
} VkattnAlign;

typedef enum VkattnMaskType {
    VKATTN_MASK_NONE = 0,
    VKATTN_MASK_BOOL = 1,  /* one byte each, nonzero = attend */
    VKATTN_MASK_FLOAT = 2, /* stored as problem.mask_dtype, added to the scores; -inf hides */
    VKATTN_MASK_MAX_ENUM = 0x7fffffff
} VkattnMaskType;

/* Slopes of the query heads, float32 in device memory: args.slopes. Any finite numbers; one that is NaN or infinite
 * makes out and lse NaN of the rows of its head that see a key. They have no gradient. */
typedef enum VkattnSlopes {
    VKATTN_SLOPES_NONE = 0,
    VKATTN_SLOPES_PER_HEAD = 1,  /* (num_heads_q) */
    VKATTN_SLOPES_PER_BATCH = 2, /* (batch, num_heads_q) */
    VKATTN_SLOPES_MAX_ENUM = 0x7fffffff
} VkattnSlopes;

/* Scales multiply the elements of a key or value of single bytes. They are float32 in device memory: args.key_scales
 * and args.value_scales. Products are rounded to float32 and, if matrix units multiply in 16 bits, to their type. */
typedef enum VkattnScales {
    VKATTN_SCALES_NONE = 0,     /* 1 */
    VKATTN_SCALES_ONE = 1,      /* (1): one for the whole tensor */
    VKATTN_SCALES_PER_HEAD = 2, /* (num_heads_kv) */
    VKATTN_SCALES_PER_ROW = 3,  /* (batch, num_heads_kv, seqlen_kv) */
    VKATTN_SCALES_MAX_ENUM = 0x7fffffff
} VkattnScales;

/* This says what slopes do to a score, behind the softcap. The number that they add is cut at 6.9e37 in magnitude. */
typedef enum VkattnSlopesApply {
    /* ALiBi (Press et al., arXiv:2108.12409): score - slope * |i + offset - j|, the offset being that of `align`. The
     * lse includes it; where it moves a whole row's lse far, the lse is as exact as a float32 of that size. */
    VKATTN_SLOPES_APPLY_DISTANCE = 0,
    /* score + slope * mask element, of a float mask; -inf hides whatever the slope is. dbias is slope * dS. */
    VKATTN_SLOPES_APPLY_MASK = 1,
    VKATTN_SLOPES_APPLY_MAX_ENUM = 0x7fffffff
} VkattnSlopesApply;

/* Distances between neighbours of a 4-D tensor (batch, head, sequence, head_dim), in elements. The innermost
 * distance is 1. For inputs 0 is legal (a broadcast). Outputs must not overlap themselves: some order of the dimensions
 * must nest, each stride being at least the span of the dimensions inside it. */
#define VKATTN_CONTIGUOUS \
    UINT64_MAX /* a stride's default: the distance it has in a dense (batch, head, seq, dim) tensor */
typedef struct VkattnStrides {
    uint64_t batch;
    uint64_t head;
    uint64_t seq;
} VkattnStrides;

/* What to compute. vkattn_problem_init sets the defaults and struct_size; then fill in what differs.
 *
 *   query (batch, num_heads_q,  seqlen_q,  head_dim_qk)      key   (batch, num_heads_kv, seqlen_kv, head_dim_qk)
 *   out   (batch, num_heads_q,  seqlen_q,  head_dim_v)       value (batch, num_heads_kv, seqlen_kv, head_dim_v)
 *   lse   (batch, num_heads_q,  seqlen_q), float32, contiguous
 *
 * A key j is visible to query row i, which stands at key position p = i + offset, if
 *   j < the batch's kv length,  and (causal)  j <= p,  and (window)  p - window_left <= j <= p + window_right.
 * With an offset per batch, windows of 2^31 - 1 keys and more count as unbounded. A float mask's finite values are
 * values, but sums beyond 7e37 in magnitude are cut there: a row of nothing but -FLT_MAX is a softmax of equal scores,
 * with an lse of about -7e37.
 * A row that sees no key gives out = 0 and lse = -inf. batch, seqlen_q and seqlen_kv may be 0.
 *
 * NaN and infinity that a row sees never vanish. A product of query and key that is NaN (or +inf, without a softcap)
 * and a mask element that is NaN or +inf make out and lse of the row NaN; a product of -inf weighs nothing. A value
 * that is not finite makes out of the row not finite. In a backward, what is not finite in dout, dlse, out or lse of
 * a row that sees a key, or in a query, key, value or mask element that it sees, makes every gradient that depends on
 * it not finite. It may spread in addition: in the forward from a value, in the backward from query, key, value and
 * dout, to other rows and keys of the same tile (at most a few hundred neighbours of the same head); with
 * batch_invariant it does not, but whether one head dim of a row's out or all of them show a value that is not finite
 * may depend on how many rows there are. Where weights of 0 would hide what is not finite, they count as 2^-126: a
 * value, or a gradient, of 1e30 and more then shows where its key weighs nothing. What no row sees changes no bit. */
typedef struct VkattnProblem {
    size_t struct_size;
    VkattnDtype dtype;    /* the type of query, and of each operand without one of its own; default float32 */
    uint32_t batch;       /* default 1 */
    uint32_t num_heads_q; /* default 1; a whole multiple of num_heads_kv */
    uint32_t num_heads_kv; /* default 1 */
    uint32_t seqlen_q;     /* default 0; at most VKATTN_MAX_SEQLEN */
    uint32_t seqlen_kv;    /* default 0; at most VKATTN_MAX_SEQLEN */
    uint32_t head_dim_qk;  /* 1 .. VKATTN_MAX_HEAD_DIM */
    uint32_t head_dim_v;   /* 1 .. VKATTN_MAX_HEAD_DIM */
    float softmax_scale;   /* default NaN, which means 1/sqrt(head_dim_qk); 0, or +-1.2e-38 to 2.3e38 */
    float softcap;         /* default 0: none; otherwise positive */
    uint32_t causal;       /* boolean; default false */
    int64_t window_left;   /* default -1: unbounded */
    int64_t window_right;  /* default -1: unbounded */
    VkattnAlign align;     /* default bottom-right; matters to causal, window and slopes */
    int64_t query_offset;  /* for VKATTN_ALIGN_OFFSET; -2^31 to 2^31 */
    uint32_t
        kv_lengths; /* boolean; default false; true: args.kv_lengths holds a key count per batch, int32 */
    VkattnMaskType mask; /* default none */
    /* The extents of the mask, 1 .. 4 of them, stand for (batch, num_heads_q, seqlen_q, seqlen_kv), aligned from the
     * right. An extent of 1 broadcasts. A mask may have fewer heads, m, where m divides num_heads_q: query head h
     * reads mask head h / (num_heads_q / m). A last extent below seqlen_kv, but not 1, hides the keys beyond it. */
    uint32_t mask_rank;
    uint32_t mask_extents[4];
    /* Each stride defaults to VKATTN_CONTIGUOUS. */
    VkattnStrides query_strides;
    VkattnStrides key_strides;
    VkattnStrides value_strides;
    VkattnStrides out_strides;
    /* What every address, and every stride in bytes, of query, key, value and out is a multiple of; strides that are
     * never taken, because there is one batch, one head or one row, may be anything. A power of two; default 0 means
     * one element of the smallest type. Whatever it is, tensors of blocks are aligned to 2 bytes, and one whose
     * elements are larger is aligned to its elements. 16 allows the widest loads; vkattn_cmd_forward rejects addresses
     * that break it. */
    uint32_t alignment_bytes;
    /* How far apart neighbours of the mask lie, in elements of the mask; neighbours along the keys always lie 1
     * apart. Each stride defaults to VKATTN_CONTIGUOUS, the distance in a dense tensor of mask_extents. 0 broadcasts.
     * Strides of dimensions that the mask does not have, or has an extent of 1 in, are not read. alignment_bytes does
     * not bind them. */
    VkattnStrides mask_strides;
    VkattnSlopes slopes;            /* default none */
    VkattnSlopesApply slopes_apply; /* default to the distance */
    /* Boolean; default false; true: args.sinks holds an attention sink of each query head, float32 (num_heads_q): a
     * final score that joins the sum of a row's weights and has no value. The lse includes it, and it is counted once
     * however the keys are split. -inf: none; finite ones are cut at 6.9e37 in magnitude. A row that sees no key has
     * out = 0 and lse = its sink. A sink of NaN or +inf makes out and lse NaN of all rows of its head. Who merges parts
     * himself leaves it out of each part, and gives it to vkattn_cmd_combine. */
    uint32_t sinks;
    /* Blocks of the score matrix, of block_rows query rows and block_keys keys, counted from query 0 and key 0 whatever
     * align and lengths are. Each a multiple of 16 up to 2^30; default 128. */
    uint32_t block_rows;
    uint32_t block_keys;
    /* Boolean; default false; true: args.block_map holds what each block is, uint8 (block_map_batches, block_map_heads,
     * vkattn_blocks(seqlen_q, block_rows), vkattn_blocks(seqlen_kv, block_keys)), dense, of less than 2^32 - 4 bytes:
     *   0       hidden: tiles of such blocks are passed over; their memory must be there all the same
     *   1       visible as far as the other rules go; the mask is not added, and dbias gets nothing of it
     *   2..255  as the mask says; without a mask, visible
     * vkattn_cmd_block_map makes a map of a mask. */
    uint32_t block_map;
    uint32_t block_map_batches; /* default 1: one map for all batches; otherwise batch */
    uint32_t block_map_heads;   /* default 1; divides num_heads_q: query head h reads map head
                                 * h / (num_heads_q / block_map_heads) */
    /* These say how single operands are stored; default VKATTN_DTYPE_SAME. out and a float mask may be float32, float16
     * or bfloat16. If one of them differs from `dtype`, the forward's matrix units multiply in 16 bits if query has 16
     * bits and key and value are of its type, blocks or single bytes, or if options.precision asks for it. What is
     * decoded is rounded to the type of the products: a number beyond float16 becomes infinite. The backward of such a
     * problem, be it the mask alone that differs, has float32 arithmetic and no matrix units, so that options.precision
     * makes it UNSUPPORTED; blocks and single bytes have no gradient. */
    VkattnDtype key_dtype;
    VkattnDtype value_dtype;
    VkattnDtype out_dtype;
    VkattnDtype mask_dtype;
    VkattnScales key_scales; /* these two: default none; only for operands of single bytes */
    VkattnScales value_scales;
    /* Boolean; default false; true: the value of a key is the first head_dim_v elements of its row, as in latent
     * attention (DeepSeek-V2, arXiv:2405.04434), so that head_dim_v is head_dim_qk at most. Type, scales, strides and
     * addresses of value are not read. Only the forward is supported. */
    uint32_t value_in_key;
} VkattnProblem;

/* The number of blocks that a sequence has: ceil(seqlen / size). */
static inline uint64_t vkattn_blocks(uint64_t seqlen, uint32_t size) {
    return size == 0 ? 0 : (seqlen + size - 1) / size;
}

/* To what the operands of the two products may be rounded: query, key and value as they are loaded, and the weights
 * that the values are summed with. Scores, softmax and every sum stay float32. */
typedef enum VkattnPrecision {
    VKATTN_PRECISION_STORAGE = 0, /* problem.dtype: float32 in means float32 arithmetic */
    VKATTN_PRECISION_FLOAT16 = 1, /* an input of 65520 and more counts as infinite: take bfloat16 */
    VKATTN_PRECISION_BFLOAT16 = 2,
    VKATTN_PRECISION_MAX_ENUM = 0x7fffffff
} VkattnPrecision;

/* How to compute it. vkattn_options_init sets the defaults. */
typedef struct VkattnOptions {
    size_t struct_size;
    const char* kernel; /* null or "auto": the planner chooses; else the name of the one kernel to use */
    const char*
        tuning; /* null: the tuning table decides; else "threads=256,rows=8,..." over the row it chose */
    /* Caps the scratch of kernels that can do with less; 0: a default of 1 GiB. Score gradients that a
     * backward keeps for another pass have a default of their own beside it: 1 GiB, or a sixteenth of the memory of the
     * device if that is less. */
    uint64_t max_scratch_bytes;
    /* No dispatch is estimated to cost more floating-point operations than this (2 * rows * keys * (head_dim_qk +
     * head_dim_v) of the tiles that can be visible): drivers kill dispatches that run for seconds. 0: a default for the
     * type of the device. A plan is cut over queries, heads and keys; see vkattn_plan_segments. The backward counts,
     * for each row and key, 2 * (2 * head_dim_qk + head_dim_v) for dquery, 4 * (head_dim_qk + head_dim_v) for dkey and
     * dvalue, and 2 * (head_dim_qk + head_dim_v) for dbias, of which one workgroup does all that shares a tile of the
     * mask: a limit below that is UNSUPPORTED. */
    uint64_t max_dispatch_flops;
    /* Parts that the keys are split into, merged by their lse; 0: the planner decides (few queries, many keys). No
     * part is less than a tile of keys, so there may be fewer: VkattnPlanInfo::num_splits says how many. */
    uint32_t num_splits;
    /* Boolean. True: the bits of a query row depend on its own query, keys, values, mask row, kv length and offset
     * alone, not on batch, on the lengths of other sequences, or on how many rows and heads there are. Slower where
     * few queries see many keys: the keys are not split for parallelism. */
    uint32_t batch_invariant;
    /* Of float32 problems; of others the storage type, which changes nothing. Asked for, it means the matrix units:
     * where they cannot serve the problem it is UNSUPPORTED, not slower. Only few query rows, whose time goes into
     * loads, may keep the kernel `rows` and float32, which is allowed, not promised; and so do kernels asked for by
     * name.
     * A backward rounds for head dims up to 256 at most, fewer where registers are. It wants the lse of a forward that
     * has rounded too: with another one its weights sum to 1 but for the rounding of a score. */
    VkattnPrecision precision;
    /* Null, the default: the library's own modules. Otherwise the VkattnModule::variant of modules that the context was
     * given (vkattn_context_add_module): each stands in for the library's module of its name, wherever the plan has
     * that. Which kernel, tuning row and module that is, is planned as without it. A plan that has none of these
     * modules is UNSUPPORTED, and the reason names those that it has. */
    const char* variant;
} VkattnOptions;

/* Attention over some of the keys gives a partial out and lse; parts over disjoint keys merge to the whole:
 *   lse = log(sum over parts of exp(lse_part)),  out = sum over parts of exp(lse_part - lse) * out_part
 * Parts may be shards of other devices, or pages of a cache. A part with lse -inf counts nothing, whatever its out
 * holds; if all are, out = 0 and lse = -inf. Rows with an lse of about -7e37 (see VkattnProblem) cannot be merged: it
 * does not tell how many keys it stands for.
 *
 *   parts     (num_parts, batch, num_heads, seqlen_q, head_dim_v) of parts_dtype
 *   parts_lse (num_parts, batch, num_heads, seqlen_q) float32, contiguous
 *   out       (batch, num_heads, seqlen_q, head_dim_v) of dtype
 *   lse       (batch, num_heads, seqlen_q) float32, contiguous */
typedef struct VkattnCombine {
    size_t struct_size;
    VkattnDtype dtype;       /* of out; default float32 */
    VkattnDtype parts_dtype; /* default float32; otherwise the same as dtype */
    uint32_t num_parts;      /* default 1; at least 1 */
    uint32_t batch;          /* default 1 */
    uint32_t num_heads;      /* default 1 */
    uint32_t seqlen_q;       /* default 0 */
    uint32_t head_dim_v;
    uint64_t part_stride;        /* from part to part; default VKATTN_CONTIGUOUS */
    VkattnStrides parts_strides; /* within a part; each defaults to VKATTN_CONTIGUOUS */
    VkattnStrides out_strides;
    uint32_t alignment_bytes; /* as in VkattnProblem, of out and parts */
} VkattnCombine;

/* The backward of a problem: gradients of sum(dout * out) + sum(dlse * lse), out and lse being the forward's.
 *
 *   dout   as out         dquery as query    dkey as key    dvalue as value    (shapes and types)
 *   dlse   as lse, float32
 *   dbias  (mask_extents), contiguous whatever the mask's strides are, of problem.mask_dtype: the scores' gradient,
 *          summed over dimensions in which the mask has an extent of 1, and over the query heads of each mask head
 *   dsinks (num_heads_q), float32: the sum over the head's rows, of all batches, that see a key
 *
 * dkey and dvalue are sums over the query heads of a group. Rows without visible keys give 0; keys that no row sees,
 * those past a kv length too, have gradient 0. Summed in a fixed order, so that the same plan and input give the same
 * bits. */
typedef struct VkattnBackward {
    size_t struct_size;
    uint32_t dlse;  /* boolean; default false; true: args.dlse holds an incoming gradient of the lse */
    uint32_t dbias; /* boolean; default false; true: args.dbias is written; problem.mask must be float */
    /* Each stride defaults to VKATTN_CONTIGUOUS; problem.alignment_bytes holds for these tensors too. */
    VkattnStrides dout_strides;
    VkattnStrides dquery_strides;
    VkattnStrides dkey_strides;
    VkattnStrides dvalue_strides;
    uint32_t dsinks; /* boolean; default false; true: args.dsinks is written; the problem must have sinks */
} VkattnBackward;

/* Kernels by the names that VkattnOptions::kernel takes and VkattnPlanInfo::kernel gives. */
#define VKATTN_KERNEL_AUTO "auto"     /* the planner chooses among those below that it may choose */
#define VKATTN_KERNEL_ROWS "rows"     /* forward: few query rows over many keys, as in decoding */
#define VKATTN_KERNEL_TILES "tiles"   /* forward and backward: float32 arithmetic, on every device */
#define VKATTN_KERNEL_MATRIX "matrix" /* forward and backward: 16-bit operands on matrix units */
/* forward: up to 16 query rows of a key head, on matrix units; on NVIDIA's driver and, if it is named, on CPUs */
#define VKATTN_KERNEL_MATRIX_ROWS "matrix_rows"
/* `rows` (forward) and `tiles` (forward and backward) with 16-bit dot products, of 16-bit problems */
#define VKATTN_KERNEL_ROWS_DOT "rows_dot"
#define VKATTN_KERNEL_TILES_DOT "tiles_dot"
/* These two are for comparison, and used only where they are named: */
#define VKATTN_KERNEL_MATRIX_KHR "matrix_khr" /* `matrix`, with nothing but VK_KHR_cooperative_matrix */
#define VKATTN_KERNEL_MATERIALIZED \
    "materialized" /* forward and backward: the whole score matrix in scratch */
/* No option names these two: */
#define VKATTN_KERNEL_COMBINE "combine"     /* of every vkattn_combine_create */
#define VKATTN_KERNEL_BLOCK_MAP "block_map" /* of every vkattn_block_map_create */

/* What was planned, in numbers: see vkattn_plan_info and vkattn_plan_check. vkattn_plan_info_init sets struct_size. */
typedef struct VkattnPlanInfo {
    size_t struct_size;
    char kernel[32]; /* one of VKATTN_KERNEL_* */
    char tuning_row
        [32]; /* name of the tuning table's row; "" for kernels that have no rows, combines and block maps */
    uint32_t segments;      /* dispatches; see vkattn_plan_segments. 0: there is nothing to compute */
    uint32_t num_splits;    /* parts that the keys are split into; 1: they are not */
    uint64_t scratch_bytes; /* as in VkattnScratch */
    uint64_t flops;         /* upper bound for all segments, counted as for max_dispatch_flops */
    /* Upper bound for the costliest segment. flops and this are 0 for `materialized` and for block maps, whose cost is
     * not estimated. */
    uint64_t max_segment_flops;
} VkattnPlanInfo;

/* What a plan needs beside its tensors. */
typedef struct VkattnScratch {
    size_t struct_size;
    uint64_t size_bytes; /* 0: none */
    uint64_t alignment_bytes;
} VkattnScratch;

#ifdef __cplusplus
}
#endif
#endif
