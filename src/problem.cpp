#include "problem.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include <fmt/format.h>

namespace vkattn::core {
namespace {

constexpr uint64_t max_bytes = uint64_t{1} << 62;
constexpr int64_t max_offset = int64_t{1} << 31;
const char* const stride_fields[] = {"problem.query_strides", "problem.key_strides", "problem.value_strides",
                                     "problem.out_strides"};

struct Extents {
    uint64_t batch, head, seq, dim;
};

Extents extents_of(const VkattnProblem& p, int tensor) {
    const bool of_query = tensor == 0 || tensor == 3;
    return {p.batch, of_query ? p.num_heads_q : p.num_heads_kv, of_query ? p.seqlen_q : p.seqlen_kv,
            tensor < 2 ? p.head_dim_qk : p.head_dim_v};
}

// Extents are below 2^32 and a stride beyond max_bytes is refused first, so a product cannot wrap unnoticed.
bool span_fits(uint64_t extent, uint64_t stride, uint64_t& total) {
    const uint64_t steps = extent == 0 ? 0 : extent - 1;
    if (stride != 0 && steps > (max_bytes - total) / stride) return false;
    total += steps * stride;
    return true;
}

// True if two elements of an output can share an address. Exact for nested layouts, the only ones accepted.
bool overlaps_itself(const Extents& n, const VkattnStrides& s) {
    std::pair<uint64_t, uint64_t> dims[] = {{s.batch, n.batch}, {s.head, n.head}, {s.seq, n.seq}};
    std::sort(std::begin(dims), std::end(dims));
    uint64_t inner = n.dim;
    for (const auto& [stride, extent] : dims) {
        if (extent <= 1) continue;
        if (stride < inner) return true;
        inner = stride * (extent - 1) + inner;
    }
    return false;
}

// Sets what is contiguous in `s`, the strides of a tensor that is shaped and stored like tensor `like` of the problem.
Result<bool> resolve_strides(const Problem& p, int like, const char* field, bool output, VkattnStrides& s) {
    const Extents n = extents_of(p, like);
    const Storage storage = p.storage_of(like);
    const uint32_t bytes = p.element_bytes_of(like), alignment = p.alignment_of(like);
    if (s.seq == VKATTN_CONTIGUOUS) s.seq = n.dim;
    if (s.head == VKATTN_CONTIGUOUS) s.head = n.seq * n.dim;
    if (s.batch == VKATTN_CONTIGUOUS) s.batch = n.head * n.seq * n.dim;
    uint64_t last = n.dim;
    const uint64_t limit = max_bytes / bytes;
    if (s.seq > limit || s.head > limit || s.batch > limit || !span_fits(n.batch, s.batch, last) ||
        !span_fits(n.head, s.head, last) || !span_fits(n.seq, s.seq, last) || last > limit)
        return invalid(field, "the tensor would span 2^62 bytes or more");
    // Frameworks carry odd strides that are never taken. They cost no error and not the wide path.
    if (n.batch <= 1) s.batch = 0;
    if (n.head <= 1) s.head = 0;
    if (n.seq <= 1) s.seq = 0;
    for (uint64_t stride : {s.batch, s.head, s.seq}) {
        if (stride % storage.elements != 0)
            return invalid(field, fmt::format("a stride of {} elements is not a multiple of a block's {}",
                                              stride, storage.elements));
        if (storage.bytes_of(stride) % alignment != 0)
            return invalid(field,
                           fmt::format("a stride of {} elements is not a multiple of alignment_bytes = {}",
                                       stride, alignment));
    }
    if (output && n.batch * n.head * n.seq != 0 && overlaps_itself(n, s))
        return invalid(field, "is no nested layout: elements of the output could share an address");
    return true;
}

Result<bool> resolve_strides(Problem& p, int tensor) {
    VkattnStrides* all[] = {&p.query_strides, &p.key_strides, &p.value_strides, &p.out_strides};
    return resolve_strides(p, tensor, stride_fields[tensor], tensor == 3, *all[tensor]);
}

Result<bool> check_shape(const VkattnProblem& p) {
    if (p.num_heads_q == 0 || p.num_heads_q > VKATTN_MAX_HEADS)
        return invalid("problem.num_heads_q",
                       fmt::format("{} is not within 1 .. {}", p.num_heads_q, VKATTN_MAX_HEADS));
    if (p.num_heads_kv == 0 || p.num_heads_q % p.num_heads_kv != 0)
        return invalid("problem.num_heads_kv", fmt::format("num_heads_q = {} is not a whole multiple of {}",
                                                           p.num_heads_q, p.num_heads_kv));
    if (p.seqlen_q > VKATTN_MAX_SEQLEN)
        return invalid("problem.seqlen_q", fmt::format("{} exceeds {}", p.seqlen_q, VKATTN_MAX_SEQLEN));
    if (p.seqlen_kv > VKATTN_MAX_SEQLEN)
        return invalid("problem.seqlen_kv", fmt::format("{} exceeds {}", p.seqlen_kv, VKATTN_MAX_SEQLEN));
    if (uint64_t{p.batch} * p.num_heads_q > std::numeric_limits<int32_t>::max())
        return invalid("problem.batch", fmt::format("batch * num_heads_q = {} exceeds 2^31 - 1",
                                                    uint64_t{p.batch} * p.num_heads_q));
    for (auto [field, dim] :
         {std::pair{"problem.head_dim_qk", p.head_dim_qk}, {"problem.head_dim_v", p.head_dim_v}})
        if (dim == 0 || dim > VKATTN_MAX_HEAD_DIM)
            return invalid(field, fmt::format("{} is not within 1 .. {}", dim, VKATTN_MAX_HEAD_DIM));
    return true;
}

bool is_float(VkattnDtype dtype) {
    return static_cast<unsigned>(dtype) <= VKATTN_DTYPE_BFLOAT16;
}

// Gives each operand that has no type of its own the problem's, and checks what types they may have.
Result<bool> resolve_types(Problem& p) {
    if (!is_float(p.dtype))
        return invalid("problem.dtype",
                       fmt::format("{} is not float32, float16 or bfloat16", static_cast<int>(p.dtype)));
    p.element_bytes = bytes_of(p.dtype);
    struct Operand {
        const char* field;
        VkattnDtype* dtype;
        bool may_have_blocks;
    };
    const Operand operands[] = {{"problem.key_dtype", &p.key_dtype, true},
                                {"problem.value_dtype", &p.value_dtype, true},
                                {"problem.out_dtype", &p.out_dtype, false},
                                {"problem.mask_dtype", &p.mask_dtype, false}};
    for (const auto& [field, dtype, may_have_blocks] : operands) {
        if (*dtype == VKATTN_DTYPE_SAME) *dtype = p.dtype;
        const bool has_blocks = storage_of(*dtype).has_blocks();
        if (is_float(*dtype) || (may_have_blocks && has_blocks)) continue;
        return invalid(field, has_blocks ? fmt::format("{} is for key and value only", name_of(*dtype))
                                         : fmt::format("{} is not a VkattnDtype", static_cast<int>(*dtype)));
    }
    if (p.mask != VKATTN_MASK_FLOAT) p.mask_dtype = p.dtype;  // nothing has it
    return true;
}

// Lets value be stored as key is. Its strides follow key's as soon as these are known.
Result<bool> resolve_value_in_key(Problem& p) {
    if (p.value_in_key == 0) return true;
    p.value_dtype = p.key_dtype;
    p.value_scales = p.key_scales;
    if (p.head_dim_v <= p.head_dim_qk) return true;
    return invalid("problem.value_in_key",
                   fmt::format("a value of {} elements does not lie in a key, which has {}", p.head_dim_v,
                               p.head_dim_qk));
}

// Checks that only bytes have scales.
Result<bool> check_scales(const VkattnProblem& p) {
    const std::tuple<const char*, VkattnScales, VkattnDtype> operands[] = {
        {"problem.key_scales", p.key_scales, p.key_dtype},
        {"problem.value_scales", p.value_scales, p.value_dtype}};
    for (const auto& [field, scales, dtype] : operands) {
        if (static_cast<unsigned>(scales) > VKATTN_SCALES_PER_ROW)
            return invalid(field, fmt::format("{} is not a VkattnScales", static_cast<int>(scales)));
        if (scales != VKATTN_SCALES_NONE && !has_single_bytes(dtype))
            return invalid(field,
                           fmt::format("{} has no scales: they are of int8, e4m3 and e5m2", name_of(dtype)));
        if (scales != VKATTN_SCALES_PER_ROW) continue;
        // Kernels index the scales of a head in 32 bits, and their bytes have to fit, too.
        constexpr uint64_t most = uint64_t{1} << 29;
        if (p.seqlen_kv > most || uint64_t{p.batch} * p.num_heads_kv > most)
            return invalid(field, fmt::format("one a key: {} keys, or {} heads of all batches, exceed 2^29",
                                              p.seqlen_kv, uint64_t{p.batch} * p.num_heads_kv));
    }
    return true;
}

// Checks that rows of key and value consist of whole blocks.
Result<bool> check_blocks(const VkattnProblem& p) {
    const std::tuple<const char*, uint32_t, VkattnDtype> rows[] = {
        {"problem.head_dim_qk", p.head_dim_qk, p.key_dtype},
        {p.value_in_key != 0 ? "problem.value_in_key" : "problem.head_dim_v", p.head_dim_v, p.value_dtype}};
    for (const auto& [field, dim, dtype] : rows)
        if (dim % storage_of(dtype).elements != 0)
            return invalid(field, fmt::format("{} is not a multiple of {}, a block of {}", dim,
                                              storage_of(dtype).elements, name_of(dtype)));
    return true;
}

// Kernels count the bytes of a map in 32 bits, and load them by words. Without a map its fields are as by default.
Result<bool> resolve_block_map(Problem& p) {
    if (p.block_map == 0) {
        p.block_rows = p.block_keys = 128;
        p.block_map_batches = p.block_map_heads = 1;
        return true;
    }
    for (const auto& [field, size] :
         {std::pair{"problem.block_rows", p.block_rows}, {"problem.block_keys", p.block_keys}})
        if (size == 0 || size % 16 != 0 || size > 1u << 30)
            return invalid(field, fmt::format("{} is not a multiple of 16 up to 2^30", size));
    if (p.block_map_batches != 1 && p.block_map_batches != p.batch)
        return invalid("problem.block_map_batches",
                       fmt::format("{} is neither 1 nor the batch of {}", p.block_map_batches, p.batch));
    if (p.block_map_heads == 0 || p.num_heads_q % p.block_map_heads != 0)
        return invalid(
            "problem.block_map_heads",
            fmt::format("num_heads_q = {} is not a whole multiple of {}", p.num_heads_q, p.block_map_heads));
    constexpr uint64_t most = (uint64_t{1} << 32) - 4;
    const uint64_t blocks =
                       vkattn_blocks(p.seqlen_q, p.block_rows) * vkattn_blocks(p.seqlen_kv, p.block_keys),
                   maps = uint64_t{p.block_map_batches} * p.block_map_heads;
    if (maps != 0 && blocks >= (most + maps - 1) / maps)
        return invalid("problem.block_map",
                       fmt::format("{} maps of {} blocks have 2^32 - 4 bytes or more", maps, blocks));
    return true;
}

Result<bool> check_semantics(const VkattnProblem& p) {
    // Kernels multiply by the scale and by log2(e): neither factor may be subnormal or infinite.
    constexpr float least_scale = std::numeric_limits<float>::min(), largest_scale = 2.3e38f;
    const float scale = std::fabs(p.softmax_scale);
    if (scale > largest_scale || (scale > 0 && scale < least_scale))
        return invalid("problem.softmax_scale",
                       fmt::format("{} is neither 0 nor within {} .. {} in magnitude", p.softmax_scale,
                                   least_scale, largest_scale));
    if (!(p.softcap >= 0) || std::isinf(p.softcap))
        return invalid("problem.softcap",
                       fmt::format("{} is not 0 (none) or positive and finite", p.softcap));
    if (p.window_left < -1)
        return invalid("problem.window_left",
                       fmt::format("{} is not -1 (unbounded), 0 or positive", p.window_left));
    if (p.window_right < -1)
        return invalid("problem.window_right",
                       fmt::format("{} is not -1 (unbounded), 0 or positive", p.window_right));
    if (static_cast<unsigned>(p.align) > VKATTN_ALIGN_OFFSETS)
        return invalid("problem.align", fmt::format("{} is not a VkattnAlign", static_cast<int>(p.align)));
    if (p.align == VKATTN_ALIGN_OFFSET && (p.query_offset > max_offset || p.query_offset < -max_offset))
        return invalid("problem.query_offset", fmt::format("{} is not within -2^31 .. 2^31", p.query_offset));
    if (static_cast<unsigned>(p.mask) > VKATTN_MASK_FLOAT)
        return invalid("problem.mask", fmt::format("{} is not a VkattnMaskType", static_cast<int>(p.mask)));
    if (static_cast<unsigned>(p.slopes) > VKATTN_SLOPES_PER_BATCH)
        return invalid("problem.slopes", fmt::format("{} is not a VkattnSlopes", static_cast<int>(p.slopes)));
    if (static_cast<unsigned>(p.slopes_apply) > VKATTN_SLOPES_APPLY_MASK)
        return invalid("problem.slopes_apply",
                       fmt::format("{} is not a VkattnSlopesApply", static_cast<int>(p.slopes_apply)));
    // Kernels index slopes in 32 bits, and bytes have to fit, too.
    if (const uint64_t heads = uint64_t{p.batch} * p.num_heads_q;
        p.slopes == VKATTN_SLOPES_PER_BATCH && heads > uint64_t{1} << 29)
        return invalid("problem.slopes",
                       fmt::format("{} slopes, one per batch and head, exceed 2^29", heads));
    if (p.slopes != VKATTN_SLOPES_NONE && p.slopes_apply == VKATTN_SLOPES_APPLY_MASK &&
        p.mask != VKATTN_MASK_FLOAT)
        return invalid("problem.slopes_apply", "slopes are applied to the mask, and there is no float mask");
    return true;
}

// Elements of a dense tensor, or more than `most`.
uint64_t dense_elements(const uint64_t (&extents)[4], uint64_t most) {
    uint64_t elements = 1;
    for (const uint64_t extent : extents) {
        if (extent == 0) return 0;
        elements = elements > most / extent ? most + 1 : elements * extent;
    }
    return elements;
}

// Sets what is contiguous in the strides of the mask, and 0 where it broadcasts.
Result<bool> resolve_mask_strides(Problem& p) {
    const uint64_t(&n)[4] = p.mask_shape;
    const uint64_t most = max_bytes / p.mask_element_bytes();
    const uint64_t dense[] = {dense_elements({1, n[1], n[2], n[3]}, most),
                              dense_elements({1, 1, n[2], n[3]}, most), n[3]};
    uint64_t* const strides[] = {&p.mask_strides.batch, &p.mask_strides.head, &p.mask_strides.seq};
    uint64_t last = n[3];
    for (int i = 2; i >= 0; i--) {
        uint64_t& stride = *strides[i];
        const bool given = stride != VKATTN_CONTIGUOUS;
        if (!given) stride = dense[i];
        if (n[i] <= 1) stride = 0;
        if (stride > most || !span_fits(n[i], stride, last) || last > most)
            return invalid(given ? "problem.mask_strides" : "problem.mask_extents",
                           "the mask would span 2^62 bytes or more");
    }
    return true;
}

Result<bool> resolve_mask(Problem& p) {
    p.key_limit = p.seqlen_kv;
    if (p.mask == VKATTN_MASK_NONE) {
        p.mask_strides = {0, 0, 0};
        return true;
    }
    if (p.mask_rank == 0 || p.mask_rank > 4)
        return invalid("problem.mask_rank", fmt::format("{} is not within 1 .. 4", p.mask_rank));
    const uint32_t full[4] = {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv};
    uint64_t extents[4] = {1, 1, 1, 1};
    for (uint32_t i = 0; i < p.mask_rank; i++) {
        const uint32_t extent = p.mask_extents[i], at = 4 - p.mask_rank + i;
        if (at == 1 && (extent == 0 || full[at] % extent != 0))
            return invalid(
                "problem.mask_extents",
                fmt::format("num_heads_q = {} is not a whole multiple of extent {} of dimension {}", full[at],
                            extent, i));
        if (at != 1 && extent != 1 && extent != full[at] && !(at == 3 && extent < full[at]))
            return invalid("problem.mask_extents",
                           fmt::format("extent {} of dimension {} is neither 1 nor {}", extent, i, full[at]));
        extents[at] = extent;
    }
    std::copy(std::begin(extents), std::end(extents), p.mask_shape);
    p.mask_group_size = p.num_heads_q / static_cast<uint32_t>(extents[1]);
    p.mask_per_key = extents[3] != 1;
    if (p.mask_per_key) p.key_limit = static_cast<uint32_t>(extents[3]);
    return resolve_mask_strides(p);
}

void put_stride_bytes(std::array<uint64_t, 12>& to, size_t tensor, const VkattnStrides& s,
                      const Storage& storage) {
    const uint64_t strides[] = {storage.bytes_of(s.batch), storage.bytes_of(s.head), storage.bytes_of(s.seq)};
    std::copy(std::begin(strides), std::end(strides), to.begin() + static_cast<ptrdiff_t>(3 * tensor));
}

// Folds causal, window and offset. A query row stands at i + offset. Bounds that lie beyond what the
// sequences can tell apart are cut to [-seqlen_q - 1, seqlen_kv], so that i + bound + 1 fits 32 bits.
void fold_bounds(Problem& p) {
    const int64_t q = p.seqlen_q, kv = p.seqlen_kv;
    p.follow_lengths = p.kv_lengths != 0 && p.align == VKATTN_ALIGN_BOTTOM_RIGHT;
    p.dynamic_bounds = p.follow_lengths || p.align == VKATTN_ALIGN_OFFSETS;
    const int64_t offset = p.follow_lengths                       ? -q
                           : p.align == VKATTN_ALIGN_BOTTOM_RIGHT ? kv - q
                           : p.align == VKATTN_ALIGN_OFFSET       ? p.query_offset
                                                                  : 0;
    using Range = std::numeric_limits<int32_t>;
    p.position = static_cast<int32_t>(std::clamp<int64_t>(offset, Range::min(), Range::max()));
    const int64_t unbounded = int64_t{1} << 40;
    // The device adds the batch's own offset in 32 bits, where wider windows cannot be told from unbounded ones.
    const int64_t widest = p.align == VKATTN_ALIGN_OFFSETS ? Range::max() : unbounded;
    const auto reach = [&](int64_t window) { return window < 0 || window >= widest ? unbounded : window; };
    const int64_t lo = offset - reach(p.window_left),
                  hi = offset + (p.causal != 0 ? 0 : reach(p.window_right));
    p.bound_lo = static_cast<int32_t>(p.dynamic_bounds ? std::clamp<int64_t>(lo, Range::min(), Range::max())
                                                       : std::clamp(lo, -q, kv));
    p.bound_hi = static_cast<int32_t>(p.dynamic_bounds ? std::clamp<int64_t>(hi, Range::min(), Range::max())
                                                       : std::clamp(hi, -q - 1, kv - 1));
}

// A failure of the problem that stands for a combine, with the combine's own field names.
Failure in_combine(Failure f) {
    static constexpr std::pair<const char*, const char*> names[] = {
        {"problem.batch", "combine.batch"},
        {"problem.num_heads_q", "combine.num_heads"},
        {"problem.num_heads_kv", "combine.num_heads"},
        {"problem.seqlen_q", "combine.seqlen_q"},
        {"problem.head_dim_qk", "combine.head_dim_v"},
        {"problem.query_strides", "combine.parts_strides"},
        {"problem.out_strides", "combine.out_strides"},
        {"problem.alignment_bytes", "combine.alignment_bytes"},
    };
    for (const auto& [from, to] : names)
        if (f.field == from) f.field = to;
    return f;
}

}  // namespace

const char* name_of(VkattnDtype dtype) {
    switch (dtype) {
        case VKATTN_DTYPE_FLOAT32:
            return "float32";
        case VKATTN_DTYPE_FLOAT16:
            return "float16";
        case VKATTN_DTYPE_BFLOAT16:
            return "bfloat16";
        case VKATTN_DTYPE_Q8_0:
            return "q8_0";
        case VKATTN_DTYPE_Q4_0:
            return "q4_0";
        case VKATTN_DTYPE_Q4_1:
            return "q4_1";
        case VKATTN_DTYPE_Q5_0:
            return "q5_0";
        case VKATTN_DTYPE_Q5_1:
            return "q5_1";
        case VKATTN_DTYPE_IQ4_NL:
            return "iq4_nl";
        case VKATTN_DTYPE_INT8:
            return "int8";
        case VKATTN_DTYPE_FLOAT8_E4M3:
            return "e4m3";
        case VKATTN_DTYPE_FLOAT8_E5M2:
            return "e5m2";
        default:
            return "unknown";
    }
}

bool has_single_bytes(VkattnDtype dtype) {
    return dtype == VKATTN_DTYPE_INT8 || dtype == VKATTN_DTYPE_FLOAT8_E4M3 ||
           dtype == VKATTN_DTYPE_FLOAT8_E5M2;
}

Storage storage_of(VkattnDtype dtype) {
    switch (dtype) {
        case VKATTN_DTYPE_INT8:
        case VKATTN_DTYPE_FLOAT8_E4M3:
        case VKATTN_DTYPE_FLOAT8_E5M2:
            return {32, 32};
        case VKATTN_DTYPE_Q8_0:
            return {32, 34};
        case VKATTN_DTYPE_Q4_0:
        case VKATTN_DTYPE_IQ4_NL:
            return {32, 18};
        case VKATTN_DTYPE_Q4_1:
            return {32, 20};
        case VKATTN_DTYPE_Q5_0:
            return {32, 22};
        case VKATTN_DTYPE_Q5_1:
            return {32, 24};
        default:
            return {1, bytes_of(dtype)};
    }
}

uint32_t bytes_of(VkattnDtype dtype) {
    return dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
}

Storage Problem::storage_of(int tensor) const {
    return core::storage_of(dtype_of(tensor));
}

uint32_t Problem::mask_element_bytes() const {
    return mask == VKATTN_MASK_BOOL ? 1 : bytes_of(mask_dtype);
}

bool Problem::has_mixed_types() const {
    return key_dtype != dtype || value_dtype != dtype || out_dtype != dtype || mask_dtype != dtype;
}

VkattnProblem default_problem() {
    VkattnProblem p;
    std::memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    p.batch = p.num_heads_q = p.num_heads_kv = 1;
    p.softmax_scale = std::numeric_limits<float>::quiet_NaN();
    p.window_left = p.window_right = -1;
    p.block_rows = p.block_keys = 128;
    p.block_map_batches = p.block_map_heads = 1;
    p.key_dtype = p.value_dtype = p.out_dtype = p.mask_dtype = VKATTN_DTYPE_SAME;
    p.query_strides = p.key_strides = p.value_strides = p.out_strides =
        p.mask_strides = {VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS};
    return p;
}

VkattnCombine default_combine() {
    VkattnCombine c;
    std::memset(&c, 0, sizeof c);
    c.struct_size = sizeof c;
    c.num_parts = c.batch = c.num_heads = 1;
    c.part_stride = VKATTN_CONTIGUOUS;
    c.parts_strides = c.out_strides = {VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS};
    return c;
}

VkattnBackward default_backward() {
    VkattnBackward b;
    std::memset(&b, 0, sizeof b);
    b.struct_size = sizeof b;
    b.dout_strides = b.dquery_strides = b.dkey_strides =
        b.dvalue_strides = {VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS};
    return b;
}

VkattnOptions default_options() {
    VkattnOptions o;
    std::memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    return o;
}

bool Problem::narrow_strides() const {
    return std::ranges::none_of(stride_bytes(),
                                [](uint64_t bytes) { return bytes > std::numeric_limits<uint32_t>::max(); });
}

std::array<uint64_t, 12> Problem::stride_bytes() const {
    std::array<uint64_t, 12> all{};
    for (size_t t = 0; t < 4; t++) put_stride_bytes(all, t, strides(int(t)), storage_of(int(t)));
    return all;
}

std::array<uint64_t, 12> Backward::stride_bytes(const Problem& problem) const {
    std::array<uint64_t, 12> all{};
    for (size_t t = 0; t < 4; t++)
        put_stride_bytes(all, t, strides(int(t)), problem.storage_of(like(int(t))));
    return all;
}

bool Problem::narrow_rows(uint32_t tile_q, uint32_t tile_kv, bool packed) const {
    const auto fits = [](uint32_t bytes, uint64_t rows, uint64_t stride, uint64_t heads,
                         uint64_t head_stride) {
        const uint64_t limit = narrow_elements(bytes);
        if (stride > limit || (heads != 0 && head_stride > limit)) return false;
        return stride * rows + head_stride * heads <= limit;
    };
    const uint64_t queries = packed ? tile_q / group_size + 2 : tile_q, heads = packed ? group_size - 1 : 0;
    for (int t = 0; t < 4; t++) {
        const bool of_query = t == 0 || t == 3;
        if (!fits(element_bytes_of(t), of_query ? queries : tile_kv, strides(t).seq, of_query ? heads : 0,
                  of_query ? strides(t).head : 0))
            return false;
    }
    return fits(mask == VKATTN_MASK_FLOAT ? bytes_of(mask_dtype) : element_bytes, queries,
                mask_strides.seq + seqlen_kv * uint64_t{mask != VKATTN_MASK_NONE}, heads, mask_strides.head);
}

Problem::Keys Problem::visible_keys(uint64_t first_row, uint64_t last_row) const {
    if (dynamic_bounds) return {0, key_limit};
    const int64_t begin = std::max<int64_t>(0, static_cast<int64_t>(first_row) + bound_lo);
    const int64_t end = std::min<int64_t>(key_limit, static_cast<int64_t>(last_row) + bound_hi + 1);
    if (begin >= end) return {0, 0};
    return {static_cast<uint64_t>(begin), static_cast<uint64_t>(end)};
}

Result<Problem> resolve(const VkattnProblem& given) {
    Problem p{given};
    if (auto ok = resolve_value_in_key(p); !ok) return ok.failure();
    if (auto ok = resolve_types(p); !ok) return ok.failure();
    for (auto check : {check_shape, check_semantics, check_blocks, check_scales})
        if (auto ok = check(p); !ok) return ok.failure();
    if (auto ok = resolve_mask(p); !ok) return ok.failure();
    if (auto ok = resolve_block_map(p); !ok) return ok.failure();
    uint32_t element = p.element_bytes;  // the smallest one
    for (int t = 0; t < 4; t++)
        if (is_float(p.dtype_of(t))) element = std::min(element, bytes_of(p.dtype_of(t)));
    if (p.alignment_bytes == 0) p.alignment_bytes = element;
    if ((p.alignment_bytes & (p.alignment_bytes - 1)) != 0 || p.alignment_bytes < element)
        return invalid(
            "problem.alignment_bytes",
            fmt::format("{} is not a power of two of at least one element ({})", p.alignment_bytes, element));
    for (int t = 0; t < 4; t++) {
        if (t == 2 && p.value_in_key != 0) p.value_strides = p.key_strides;
        if (auto ok = resolve_strides(p, t); !ok) return ok.failure();
    }
    if (std::isnan(p.softmax_scale)) p.softmax_scale = 1 / std::sqrt(static_cast<float>(p.head_dim_qk));
    p.group_size = p.num_heads_q / p.num_heads_kv;
    fold_bounds(p);
    return p;
}

Result<Backward> resolve(const Problem& p, const VkattnBackward& given) {
    Backward b{given};
    if (b.dbias != 0 && p.mask != VKATTN_MASK_FLOAT)
        return invalid("backward.dbias", "is the gradient of a float mask, and the problem has none");
    const uint64_t most = max_bytes / p.dbias_element_bytes();
    if (b.dbias != 0 && dense_elements(p.mask_shape, most) > most)
        return invalid("backward.dbias", "the gradient would have 2^62 bytes or more: it is contiguous");
    if (b.dsinks != 0 && p.sinks == 0)
        return invalid("backward.dsinks", "is the gradient of sinks, and the problem has none");
    if (b.dbias != 0) std::copy(std::begin(p.mask_shape), std::end(p.mask_shape), b.dbias_extents);
    const std::pair<const char*, VkattnStrides*> tensors[] = {
        {"backward.dout_strides", &b.dout_strides},
        {"backward.dquery_strides", &b.dquery_strides},
        {"backward.dkey_strides", &b.dkey_strides},
        {"backward.dvalue_strides", &b.dvalue_strides},
    };
    for (int t = 0; t < 4; t++) {
        const auto& [field, strides] = tensors[t];
        if (auto ok = resolve_strides(p, Backward::like(t), field, t != 0, *strides); !ok)
            return ok.failure();
    }
    return b;
}

Result<Combine> resolve(const VkattnCombine& given) {
    Combine c{given};
    for (auto [field, dtype] : {std::pair{"combine.dtype", c.dtype}, {"combine.parts_dtype", c.parts_dtype}})
        if (static_cast<unsigned>(dtype) > VKATTN_DTYPE_BFLOAT16)
            return invalid(field, fmt::format("{} is not a VkattnDtype", static_cast<int>(dtype)));
    if (c.parts_dtype != VKATTN_DTYPE_FLOAT32 && c.parts_dtype != c.dtype)
        return invalid("combine.parts_dtype", "is neither float32 nor combine.dtype");
    c.element_bytes = bytes_of(c.dtype);
    c.parts_element_bytes = bytes_of(c.parts_dtype);
    if (c.num_parts == 0) return invalid("combine.num_parts", "is 0");
    // Parts have an output as a problem has, and a layout like it.
    VkattnProblem p = default_problem();
    p.dtype = c.dtype;
    p.batch = c.batch;
    p.num_heads_q = p.num_heads_kv = c.num_heads;
    p.seqlen_q = c.seqlen_q;
    p.head_dim_qk = p.head_dim_v = c.head_dim_v;
    p.query_strides = p.key_strides = p.value_strides = {0, 0, 0};  // there is none
    p.out_strides = c.out_strides;
    p.alignment_bytes = c.alignment_bytes;
    const auto out = resolve(p);
    if (!out) return in_combine(out.failure());
    Problem parts = *out;
    parts.dtype = c.parts_dtype;
    parts.element_bytes = c.parts_element_bytes;
    parts.alignment_bytes = std::max(c.alignment_bytes, c.parts_element_bytes);
    parts.query_strides = c.parts_strides;
    if (auto ok = resolve_strides(parts, 0); !ok) return in_combine(ok.failure());
    if (c.part_stride == VKATTN_CONTIGUOUS)
        c.part_stride = uint64_t{c.batch} * c.num_heads * c.seqlen_q * c.head_dim_v;
    if (c.part_stride > max_bytes / c.parts_element_bytes / c.num_parts)
        return invalid("combine.part_stride", "the parts would span 2^62 bytes or more");
    if (c.num_parts == 1) c.part_stride = 0;  // never taken
    if (c.part_stride * c.parts_element_bytes % parts.alignment_bytes != 0)
        return invalid("combine.part_stride",
                       fmt::format("is not a multiple of alignment_bytes = {}", parts.alignment_bytes));
    c.alignment_bytes = out->alignment_bytes;
    c.out_strides = out->out_strides;
    c.parts_strides = parts.query_strides;
    return c;
}

}  // namespace vkattn::core
