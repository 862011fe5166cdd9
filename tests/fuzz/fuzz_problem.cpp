// Validation: what resolve makes of any problem, backward and combine, and whether overlap tells the truth of two
// tensors. A failure names a field of the struct; a success says what the arithmetic of kernels and planner relies on.
#include <algorithm>
#include <cmath>
#include <vector>

#include "inputs.hpp"
#include "overlap.hpp"
#include "problem_bounds.hpp"

using namespace vkattn;
using fuzz::check;

namespace {

__extension__ using Wide = unsigned __int128;
constexpr Wide max_bytes = Wide{1} << 62;

struct Tensor {
    uint64_t batch, heads, rows, dim;
    VkattnStrides strides;
};

// The bytes from the first element to the last.
Wide span_of(const Tensor& t, uint64_t element_bytes) {
    Wide span = t.dim;
    for (const auto& [extent, stride] :
         {std::pair{t.batch, t.strides.batch}, {t.heads, t.strides.head}, {t.rows, t.strides.seq}})
        span += Wide{extent == 0 ? 0 : extent - 1} * stride;
    return span * element_bytes;
}

// Where rows begin, of a tensor with few of them.
std::vector<uint64_t> rows_of(const Tensor& t) {
    std::vector<uint64_t> all;
    for (uint64_t b = 0; b < t.batch; b++)
        for (uint64_t h = 0; h < t.heads; h++)
            for (uint64_t i = 0; i < t.rows; i++)
                all.push_back(b * t.strides.batch + h * t.strides.head + i * t.strides.seq);
    return all;
}

bool is_small(const Tensor& t) {
    return t.batch <= 256 && t.heads <= 256 && t.rows <= 256 && t.batch * t.heads * t.rows <= 256;
}

void check_tensor(const Tensor& t, uint64_t element_bytes, uint64_t alignment, bool output) {
    check(span_of(t, element_bytes) <= max_bytes, "a tensor spans more than 2^62 bytes");
    for (const uint64_t stride : {t.strides.batch, t.strides.head, t.strides.seq})
        check(stride * element_bytes % alignment == 0, "a stride breaks the alignment");
    check(t.batch > 1 || t.strides.batch == 0, "a stride of one batch is left");
    check(t.heads > 1 || t.strides.head == 0, "a stride of one head is left");
    check(t.rows > 1 || t.strides.seq == 0, "a stride of one row is left");
    if (!output || !is_small(t)) return;
    std::vector<uint64_t> rows = rows_of(t);
    std::sort(rows.begin(), rows.end());
    for (size_t i = 1; i < rows.size(); i++)
        check(rows[i] - rows[i - 1] >= t.dim, "rows of an output overlap");
}

// A failure must name a field of the struct; which rule names which one, the tests of problems say.
template <class T>
bool resolves(const core::Result<T>& result, const std::string& name) {
    if (result) return true;
    fuzz::check_failure(result.failure());
    check(result.failure().status == VKATTN_INVALID_ARGUMENT, "validation knows no device");
    check(result.failure().field.starts_with(name + "."), "the field is of another struct");
    return false;
}

bool same(const VkattnStrides& a, const VkattnStrides& b) {
    return a.batch == b.batch && a.head == b.head && a.seq == b.seq;
}

Tensor tensor_of(const core::Problem& p, int tensor) {
    const bool of_query = tensor == 0 || tensor == 3;
    return {p.batch, of_query ? p.num_heads_q : p.num_heads_kv, of_query ? p.seqlen_q : p.seqlen_kv,
            tensor < 2 ? p.head_dim_qk : p.head_dim_v, p.strides(tensor)};
}

void check_mask(const core::Problem& p) {
    check(p.key_limit <= p.seqlen_kv, "keys beyond the last are visible");
    if (p.mask == VKATTN_MASK_NONE) return;
    check(uint64_t{p.mask_group_size} * p.mask_shape[1] == p.num_heads_q, "mask heads are not read evenly");
    const Wide steps[] = {p.mask_shape[0], p.mask_shape[1], p.mask_shape[2]};
    const uint64_t strides[] = {p.mask_strides.batch, p.mask_strides.head, p.mask_strides.seq};
    Wide span = p.mask_shape[3];
    for (size_t i = 0; i < 3; i++) span += (steps[i] == 0 ? 0 : steps[i] - 1) * strides[i];
    check(span * p.mask_element_bytes() <= max_bytes, "a mask spans more than 2^62 bytes");
}

// The bounds of some rows against the definition, for lengths and offsets of the batch's own.
void check_bounds(fuzz::Bytes& bytes, const VkattnProblem& given, const core::Problem& p) {
    if (p.seqlen_q == 0) return;
    const auto word = [&] { return static_cast<int32_t>(static_cast<uint32_t>(bytes.hostile())); };
    for (int tries = 0; tries < 4; tries++) {
        const uint32_t row = bytes.below(p.seqlen_q);
        fuzz::check_flaw(test::row_flaw(given, p, row, word(), word()));
        const core::Problem::Keys keys = p.visible_keys(row, p.seqlen_q - 1);
        check(keys.begin <= keys.end && keys.end <= p.key_limit, "visible keys that do not exist");
    }
}

// What a caller would read from a resolved problem resolves to the same.
void check_again(const core::Problem& p) {
    const auto again = core::resolve(static_cast<const VkattnProblem&>(p));
    check(static_cast<bool>(again), "a resolved problem is refused");
    for (int t = 0; t < 4; t++) check(same(again->strides(t), p.strides(t)), "strides resolve to others");
    check(same(again->mask_strides, p.mask_strides), "strides of a mask resolve to others");
    check(again->bound_lo == p.bound_lo && again->bound_hi == p.bound_hi, "bounds resolve to others");
    check(again->softmax_scale == p.softmax_scale && again->alignment_bytes == p.alignment_bytes &&
              again->key_limit == p.key_limit && again->group_size == p.group_size,
          "numbers resolve to others");
}

void fuzz_backward(fuzz::Bytes& bytes, const core::Problem& p) {
    const auto b = core::resolve(p, fuzz::backward_of(bytes, p));
    if (!resolves(b, "backward")) return;
    for (int t = 0; t < 4; t++) {
        const int like = core::Backward::like(t);
        Tensor tensor = tensor_of(p, like);
        tensor.strides = b->strides(t);
        check_tensor(tensor, p.element_bytes_of(like), p.alignment_of(like), t != 0);
    }
    Wide elements = 1;
    for (const uint64_t extent : b->dbias_extents) elements *= extent;
    check(elements * p.element_bytes <= max_bytes, "dbias has more than 2^62 bytes");
    check(b->has_bias() == (elements != 0), "dbias has elements, or has none");
    b->stride_bytes(p);
}

void fuzz_problem(fuzz::Bytes& bytes) {
    const VkattnProblem given = fuzz::problem_of(bytes);
    auto p = core::resolve(given);
    if (!resolves(p, "problem")) return;
    if (fuzz::has_planted_fault()) p->bound_hi++;
    for (int t = 0; t < 4; t++)
        check_tensor(tensor_of(*p, t), p->element_bytes_of(t), p->alignment_of(t), t == 3);
    check(std::isfinite(p->softmax_scale) && std::isfinite(p->softcap), "a scale that is no number");
    check(p->group_size * p->num_heads_kv == p->num_heads_q, "heads are not grouped evenly");
    check_mask(*p);
    check_bounds(bytes, given, *p);
    check_again(*p);
    const uint32_t tile_q = 1 + bytes.below(1024), tile_kv = 1 + bytes.below(1024);
    const bool narrow = p->narrow_rows(tile_q, tile_kv, false);
    check(!narrow || tile_q == 1 || p->narrow_rows(tile_q - 1, tile_kv, false), "a smaller tile is wide");
    fuzz_backward(bytes, *p);
}

void fuzz_combine(fuzz::Bytes& bytes) {
    const VkattnCombine given = fuzz::combine_of(bytes);
    const auto c = core::resolve(given);
    if (!resolves(c, "combine")) return;
    const uint64_t of_parts = std::max(c->parts_element_bytes, given.alignment_bytes);
    check_tensor({c->batch, c->num_heads, c->seqlen_q, c->head_dim_v, c->out_strides}, c->element_bytes,
                 c->alignment_bytes, true);
    check_tensor({c->batch, c->num_heads, c->seqlen_q, c->head_dim_v, c->parts_strides},
                 c->parts_element_bytes, of_parts, false);
    check(Wide{c->part_stride} * c->num_parts * c->parts_element_bytes <= max_bytes,
          "the parts span more than 2^62 bytes");
    check(c->num_parts > 1 || c->part_stride == 0, "a stride of one part is left");
    const auto again = core::resolve(static_cast<const VkattnCombine&>(*c));
    check(again && same(again->out_strides, c->out_strides) && same(again->parts_strides, c->parts_strides) &&
              again->part_stride == c->part_stride,
          "a resolved combine resolves to another");
}

// Few enough runs that the search is never given up.
core::Placement placement_of(fuzz::Bytes& bytes, uint64_t base) {
    core::Placement p;
    p.address = base + bytes.number(10);
    p.run_bytes = bytes.number(7);
    uint32_t most = 32;
    for (auto& dim : p.dims) {
        dim.count = bytes.from(bytes.one_in(32) ? 0 : 1, most);
        dim.stride_bytes = bytes.number(bytes.one_in(16) ? 64 : 10);
        most /= static_cast<uint32_t>(std::max<uint64_t>(1, dim.count));
    }
    return p;
}

// Where runs begin; empty if some lies beyond what memory could hold.
std::vector<Wide> runs_of(const core::Placement& p) {
    std::vector<Wide> runs{p.address};
    for (const auto& dim : p.dims) {
        std::vector<Wide> all;
        for (const Wide at : runs)
            for (uint64_t i = 0; i < dim.count; i++) all.push_back(at + Wide{i} * dim.stride_bytes);
        runs = all;
    }
    const Wide longest = Wide{1} << 59;
    if (p.run_bytes == 0) return {};
    for (const Wide at : runs)
        if (at + p.run_bytes - p.address > longest || at + p.run_bytes > UINT64_MAX) return {};
    return runs;
}

void fuzz_overlap(fuzz::Bytes& bytes) {
    const uint64_t base = bytes.ConsumeBool() ? 4096 : bytes.hostile();
    const core::Placement a = placement_of(bytes, base), b = placement_of(bytes, base);
    bool common = false;
    for (const Wide x : runs_of(a))
        for (const Wide y : runs_of(b)) common |= x < y + b.run_bytes && y < x + a.run_bytes;
    check(overlap(a, b) == common, "overlap of a and b");
    check(overlap(b, a) == common, "overlap of b and a");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    fuzz::Bytes bytes(data, size);
    switch (bytes.below(4)) {
        case 0:
            fuzz_combine(bytes);
            break;
        case 1:
            fuzz_overlap(bytes);
            break;
        default:
            fuzz_problem(bytes);
    }
    return 0;
}
