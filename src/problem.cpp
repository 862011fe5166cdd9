#include "problem.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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

Result<bool> resolve_strides(Problem& p, int tensor) {
    VkattnStrides* all[] = {&p.query_strides, &p.key_strides, &p.value_strides, &p.out_strides};
    VkattnStrides& s = *all[tensor];
    const Extents n = extents_of(p, tensor);
    if (s.seq == VKATTN_CONTIGUOUS) s.seq = n.dim;
    if (s.head == VKATTN_CONTIGUOUS) s.head = n.seq * n.dim;
    if (s.batch == VKATTN_CONTIGUOUS) s.batch = n.head * n.seq * n.dim;
    const char* field = stride_fields[tensor];
    uint64_t last = n.dim;
    const uint64_t limit = max_bytes / p.element_bytes;
    if (s.seq > limit || s.head > limit || s.batch > limit || !span_fits(n.batch, s.batch, last) ||
        !span_fits(n.head, s.head, last) || !span_fits(n.seq, s.seq, last) || last > limit)
        return invalid(field, "the tensor would span 2^62 bytes or more");
    const uint64_t unit = p.alignment_bytes / p.element_bytes;
    for (uint64_t stride : {s.batch, s.head, s.seq})
        if (stride % unit != 0)
            return invalid(field,
                           fmt::format("a stride of {} elements is not a multiple of alignment_bytes = {}",
                                       stride, p.alignment_bytes));
    if (tensor == 3 && n.batch * n.head * n.seq != 0 && overlaps_itself(n, s))
        return invalid(field, "is no nested layout: elements of the output could share an address");
    // A stride that is never taken must not cost the wide path.
    if (n.batch <= 1) s.batch = 0;
    if (n.head <= 1) s.head = 0;
    if (n.seq <= 1) s.seq = 0;
    return true;
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

Result<bool> check_semantics(const VkattnProblem& p) {
    if (std::isinf(p.softmax_scale)) return invalid("problem.softmax_scale", "is infinite");
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
    return true;
}

Result<bool> check_mask(const VkattnProblem& p) {
    if (p.mask == VKATTN_MASK_NONE) return true;
    if (p.mask_rank == 0 || p.mask_rank > 4)
        return invalid("problem.mask_rank", fmt::format("{} is not within 1 .. 4", p.mask_rank));
    const uint32_t full[4] = {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv};
    for (uint32_t i = 0; i < p.mask_rank; i++) {
        const uint32_t extent = p.mask_extents[i], whole = full[4 - p.mask_rank + i];
        const bool last = i + 1 == p.mask_rank;
        if (extent != 1 && extent != whole && !(last && extent < whole))
            return invalid("problem.mask_extents",
                           fmt::format("extent {} of dimension {} is neither 1 nor {}", extent, i, whole));
    }
    return true;
}

// Folds causal, window and offset. A query row stands at i + offset. Bounds that lie beyond what the
// sequences can tell apart are cut to [-seqlen_q - 1, seqlen_kv], so that i + bound + 1 fits 32 bits.
void fold_bounds(Problem& p) {
    const int64_t q = p.seqlen_q, kv = p.seqlen_kv;
    const int64_t offset = p.align == VKATTN_ALIGN_BOTTOM_RIGHT ? kv - q
                           : p.align == VKATTN_ALIGN_OFFSET     ? p.query_offset
                                                                : 0;
    const int64_t unbounded = int64_t{1} << 40;
    const int64_t left = p.window_left < 0 ? unbounded : std::min(p.window_left, unbounded);
    const int64_t right = p.window_right < 0 ? unbounded : std::min(p.window_right, unbounded);
    const int64_t hi = offset + (p.causal != 0 ? 0 : right);
    p.bound_lo = static_cast<int32_t>(std::clamp(offset - left, -q, kv));
    p.bound_hi = static_cast<int32_t>(std::clamp(hi, -q - 1, kv - 1));
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
        default:
            return "unknown";
    }
}

VkattnProblem default_problem() {
    VkattnProblem p;
    std::memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    p.batch = p.num_heads_q = p.num_heads_kv = 1;
    p.softmax_scale = std::numeric_limits<float>::quiet_NaN();
    p.window_left = p.window_right = -1;
    p.query_strides = p.key_strides = p.value_strides =
        p.out_strides = {VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS};
    return p;
}

VkattnOptions default_options() {
    VkattnOptions o;
    std::memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    return o;
}

bool Problem::narrow_strides() const {
    for (int t = 0; t < 4; t++)
        for (uint64_t s : {strides(t).batch, strides(t).head, strides(t).seq})
            if (s > std::numeric_limits<uint32_t>::max() / element_bytes) return false;
    return true;
}

bool Problem::narrow_rows(uint32_t tile_rows) const {
    // In bytes, though shaders index elements: SwiftShader multiplies an index into bytes in 32 bits, with a sign.
    const uint64_t limit = (uint64_t{1} << 31) / element_bytes - VKATTN_MAX_HEAD_DIM;
    for (int t = 0; t < 4; t++)
        if (strides(t).seq > limit / tile_rows) return false;
    return true;
}

Result<Problem> resolve(const VkattnProblem& given) {
    Problem p{given};
    if (static_cast<unsigned>(p.dtype) > VKATTN_DTYPE_BFLOAT16)
        return invalid("problem.dtype", fmt::format("{} is not a VkattnDtype", static_cast<int>(p.dtype)));
    p.element_bytes = p.dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
    for (auto check : {check_shape, check_semantics, check_mask})
        if (auto ok = check(p); !ok) return ok.failure();
    if (p.alignment_bytes == 0) p.alignment_bytes = p.element_bytes;
    if ((p.alignment_bytes & (p.alignment_bytes - 1)) != 0 || p.alignment_bytes < p.element_bytes)
        return invalid("problem.alignment_bytes",
                       fmt::format("{} is not a power of two of at least one element ({})", p.alignment_bytes,
                                   p.element_bytes));
    for (int t = 0; t < 4; t++)
        if (auto ok = resolve_strides(p, t); !ok) return ok.failure();
    if (std::isnan(p.softmax_scale)) p.softmax_scale = 1 / std::sqrt(static_cast<float>(p.head_dim_qk));
    p.group_size = p.num_heads_q / p.num_heads_kv;
    fold_bounds(p);
    return p;
}

}  // namespace vkattn::core
