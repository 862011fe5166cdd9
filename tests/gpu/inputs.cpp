#include "inputs.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace vkattn::test {
namespace {

constexpr uint64_t most_elements = uint64_t{1} << 28;  // of an image
constexpr double hidden = -std::numeric_limits<double>::infinity();

// Random numbers that are the same on every platform.
struct Fill {
    std::mt19937 random;
    double uniform() { return static_cast<double>(random()) / 4294967296.0; }
    // About normal, with unit variance.
    double normal() {
        double sum = 0;
        for (int i = 0; i < 4; i++) sum += uniform() - 0.5;
        return sum * std::sqrt(3.0);
    }
};

// Scores that grow by this much (base e) from key to key: past every tile's rescaling threshold.
constexpr double growth_of_score = 0.6;

// With values=spike a query row points along one head dim, and each of these has a key at a random place that answers
// with this score: beside it the weights of all others vanish, and 2 to its power is beyond float32.
constexpr double spike_score = 150, spike_query = 8;

uint64_t key_of_spike(const Case& c, uint64_t dim) {
    return (static_cast<uint32_t>(dim) + c.seed * 64) * 2654435761u % c.problem.seqlen_kv;
}

double spike_of(const Case& c, double scale, int tensor, uint64_t row, uint64_t dim, double x) {
    if (tensor == 0) return dim == row % c.problem.head_dim_qk ? spike_query + x / 16 : x / 16;
    return tensor == 1 && row == key_of_spike(c, dim) ? spike_score / (spike_query * scale) : x;
}

// With values=quarters each head dim of the value has a number and the next larger one of its type: 0 to 3 of the four
// keys have the latter, so that their mean is as many quarters of the way. The numbers are odd and even ones, of either
// sign, and of float16 subnormal ones too.
double quarter_of(const Case& c, uint64_t row, uint64_t dim) {
    const uint64_t bits = c.problem.dtype == VKATTN_DTYPE_BFLOAT16 ? 7 : 10;  // of the fraction
    const uint64_t fraction = (dim * 37 + c.seed * 64) % ((uint64_t{1} << bits) - 1);
    const bool is_subnormal = c.problem.dtype == VKATTN_DTYPE_FLOAT16 && dim % 5 == 4;
    const uint64_t steps = fraction + (is_subnormal ? 0 : uint64_t{1} << bits) + (row < dim / 2 % 4 ? 1 : 0);
    const double size = std::ldexp(static_cast<double>(steps), is_subnormal ? -24 : -static_cast<int>(bits));
    return dim % 3 == 1 ? -size : size;
}

// With values=limit each head dim of the value has one number for all keys, which out must be then: the largest of
// float16, of other types the largest that docs/semantics.md promises for as many keys.
double limit_of(const Case& c, uint64_t dim) {
    const double largest = c.problem.dtype == VKATTN_DTYPE_FLOAT16
                               ? 65504
                               : std::numeric_limits<float>::max() / (16384.0 * c.problem.seqlen_kv);
    return dim % 3 == 1 ? -largest : largest;
}

// With values=channel all keys share one large number in head dim 0, which adds as much to every score, and queries
// and keys are small elsewhere.
double channel_of(const Case& c, int tensor, uint64_t dim, double x) {
    if (tensor > 1) return x;
    if (dim != 0) return 0.1 * x;
    const double level = c.seed % 2 == 0 ? -1000 : -3000;
    return tensor == 0 ? 1 : level * std::sqrt(static_cast<double>(c.problem.head_dim_qk));
}

bool is_float16(const Case& c) {
    return c.problem.dtype == VKATTN_DTYPE_FLOAT16 || c.precision == VKATTN_PRECISION_FLOAT16;
}

double value_of(const Case& c, double scale, int tensor, uint64_t row, uint64_t dim, Fill& fill) {
    const double x = fill.normal();
    const double divisor = scale != 0 ? scale : 1, step = growth_of_score / (c.problem.head_dim_qk * divisor);
    const auto j = static_cast<double>(row);
    switch (c.values) {
        case Values::normal:
            return x;
        case Values::large:
            return 5 * x;
        case Values::huge:  // as far as float16 reaches
            return x * (tensor != 2 ? 10 : is_float16(c) ? 1e4 : 1e6);
        case Values::equal:
            return tensor == 2 ? x : 0.5;
        case Values::ascending:
            return tensor == 0 ? 1 + x / 16 : tensor == 1 ? j * step : x;
        case Values::descending:
            return tensor == 0 ? 1 + x / 16 : tensor == 1 ? -j * step : x;
        case Values::spike:
            return spike_of(c, divisor, tensor, row, dim, x);
        case Values::quarters:
            return tensor == 2 ? quarter_of(c, row, dim) : x;
        case Values::limit:
            return tensor == 2 ? limit_of(c, dim) : 6 * x;
        case Values::channel:
            return channel_of(c, tensor, dim, x);
    }
    return x;
}

// `rows`: which ones, of (batch, heads, seqlen); null: all.
void fill_tensor(const Case& c, int which, Tensor& t, const std::vector<bool>* rows) {
    Fill fill{std::mt19937(c.seed * 4 + static_cast<uint32_t>(which))};
    const double scale = oracle_problem(c).softmax_scale;
    std::vector<double> values(t.dim);
    for (uint64_t b = 0; b < t.batch; b++)
        for (uint64_t h = 0; h < t.heads; h++)
            for (uint64_t s = 0; s < t.seqlen; s++) {
                if (rows != nullptr && !(*rows)[(b * t.heads + h) * t.seqlen + s]) continue;
                for (uint64_t d = 0; d < t.dim; d++)
                    values[d] = value_of(c, scale, which, s, d, fill) / t.scale_of(b, h, s);
                store_row(t.row(b, h, s), values, t.dtype);
            }
}

// A row of a mask, and how the others are.
struct MaskRow {
    uint64_t index, rows, columns;
    uint64_t i;  // of the row axis
};

double lowest_at(const MaskRow& row, uint64_t j, double least, Fill& fill) {
    const double x = fill.normal();
    const bool chance = fill.uniform() < 0.5;
    switch (row.i % 4) {
        case 0:  // a softmax of equal scores
            return least;
        case 1:  // the same over some of the keys
            return chance ? least : hidden;
        case 2:
            return j % 3 == 0 ? least : chance ? x : hidden;
        default:
            return x;
    }
}

bool is_visible(MaskFill how, const MaskRow& row, uint64_t j, Fill& fill) {
    const bool chance = fill.uniform() < 0.5;
    constexpr uint64_t bands = 3;
    switch (how) {
        case MaskFill::random:
        case MaskFill::far:
            return chance;
        case MaskFill::banded:  // blocks on the diagonal; of a single row, the middle
            return row.rows == 1 ? j * bands / row.columns == 1
                                 : row.i * bands / row.rows == j * bands / row.columns;
        case MaskFill::rows:
            return row.index % 3 != 1 && chance;
        case MaskFill::tail:
            return j < (row.index * 37 + 11) % (row.columns + 1);
        case MaskFill::lowest:
            break;
    }
    return true;
}

// Where the rows of a mask lie, in elements: one after another in C order.
std::vector<uint64_t> mask_rows(const VkattnProblem& p) {
    uint64_t n[4] = {1, 1, 1, 1};
    std::copy_n(p.mask_extents, p.mask_rank, n + 4 - p.mask_rank);
    VkattnStrides s = p.mask_strides;
    if (s.seq == VKATTN_CONTIGUOUS) s.seq = n[3];
    if (s.head == VKATTN_CONTIGUOUS) s.head = n[2] * n[3];
    if (s.batch == VKATTN_CONTIGUOUS) s.batch = n[1] * n[2] * n[3];
    std::vector<uint64_t> rows;
    rows.reserve(n[0] * n[1] * n[2]);
    for (uint64_t b = 0; b < n[0]; b++)
        for (uint64_t h = 0; h < n[1]; h++)
            for (uint64_t i = 0; i < n[2]; i++) rows.push_back(b * s.batch + h * s.head + i * s.seq);
    return rows;
}

// The elements from the first to the last one of the mask.
uint64_t mask_span(const Case& c, const std::vector<uint64_t>& rows) {
    const uint64_t columns = c.problem.mask_extents[c.problem.mask_rank - 1];
    const uint64_t span = rows.empty() || columns == 0 ? 0 : *std::ranges::max_element(rows) + columns;
    if (span > most_elements) throw CaseError(c.where + ": the mask is too large for the tests");
    return span;
}

// Where rows overlap, elements that share a place become equal.
void settle(const Case& c, std::vector<double>& mask) {
    const std::vector<uint64_t> rows = mask_rows(c.problem);
    std::vector<double> image(mask_span(c, rows));
    const uint64_t columns = rows.empty() ? 0 : mask.size() / rows.size();
    for (size_t n = 0; n < mask.size(); n++) image[rows[n / columns] + n % columns] = mask[n];
    for (size_t n = 0; n < mask.size(); n++) mask[n] = image[rows[n / columns] + n % columns];
}

std::vector<double> make_mask(const Case& c) {
    const VkattnProblem& p = c.problem;
    if (p.mask == VKATTN_MASK_NONE) return {};
    const uint32_t* const extents = p.mask_extents;
    MaskRow row{0, p.mask_rank > 1 ? extents[p.mask_rank - 2] : 1, extents[p.mask_rank - 1], 0};
    uint64_t rows = 1;
    for (uint32_t axis = 0; axis + 1 < p.mask_rank; axis++) rows *= extents[axis];
    if (rows * row.columns > most_elements)
        throw CaseError(c.where + ": the mask is too large for the tests");
    Fill fill{std::mt19937(c.seed * 4 + 3)};
    std::vector<double> mask;
    mask.reserve(rows * row.columns);
    for (; row.index < rows; row.index++) {
        row.i = row.index % row.rows;
        for (uint64_t j = 0; j < row.columns; j++) {
            double value = 0;
            if (c.mask_fill == MaskFill::lowest)
                value = lowest_at(row, j, lowest(mask_dtype_of(p)), fill);
            else if (!is_visible(c.mask_fill, row, j, fill))
                value = hidden;
            else if (p.mask == VKATTN_MASK_FLOAT)
                value = fill.normal() +
                        (c.mask_fill == MaskFill::far ? 49152.0 * (static_cast<int>(row.index % 3) - 1) : 0);
            mask.push_back(p.mask == VKATTN_MASK_FLOAT ? rounded(value, mask_dtype_of(p)) : value);
        }
    }
    settle(c, mask);
    return mask;
}

struct Range {
    int64_t first, last;  // inclusive
};

// What lengths, causality and the window leave of the keys.
Range bounds(const Case& c, uint64_t b, int64_t i) {
    const VkattnProblem& p = c.problem;
    int64_t keys = p.seqlen_kv, offset = 0;
    if (!c.kv_lengths.empty()) keys = std::clamp<int64_t>(c.kv_lengths[b], 0, keys);
    if (p.align == VKATTN_ALIGN_BOTTOM_RIGHT) offset = keys - p.seqlen_q;
    if (p.align == VKATTN_ALIGN_OFFSET) offset = p.query_offset;
    if (p.align == VKATTN_ALIGN_OFFSETS) offset = c.query_offsets[b];
    const int64_t position = i + offset;
    Range range{0, keys - 1};
    if (p.causal != 0) range.last = std::min(range.last, position);
    if (p.window_right >= 0)
        range.last = std::min(range.last, position + std::min(p.window_right, widest_window));
    if (p.window_left >= 0)
        range.first = std::max(range.first, position - std::min(p.window_left, widest_window));
    return range;
}

}  // namespace

uint64_t Tensor::span() const {
    if (batch * heads * seqlen * dim == 0) return 0;
    return at(batch - 1, heads - 1, seqlen - 1) + dim;
}

std::vector<float> Tensor::gather(std::span<const std::byte> from) const {
    std::vector<float> dense;
    dense.reserve(batch * heads * seqlen * dim);
    for_each_row([&](uint64_t b, uint64_t h, uint64_t s) {
        for (uint64_t d = 0; d < dim; d++)
            dense.push_back(load_element(from.data() + bytes_of(dtype, at(b, h, s)), d, dtype) *
                            static_cast<float>(scale_of(b, h, s)));
    });
    return dense;
}

void Tensor::scatter(std::span<const float> dense) {
    size_t next = 0;
    for_each_row([&](uint64_t b, uint64_t h, uint64_t s) {
        for (uint64_t d = 0; d < dim; d++)
            store(row(b, h, s) + d * element_bytes(dtype), static_cast<double>(dense[next++]), dtype);
    });
}

std::vector<bool> Tensor::covered() const {
    std::vector<bool> bytes(bytes_of(dtype, span()), false);
    for_each_row([&](uint64_t b, uint64_t h, uint64_t s) {
        std::fill_n(bytes.begin() + (row(b, h, s) - image.data()), row_bytes(), true);
    });
    return bytes;
}

// Sets the scale of each row of key or value.
static void expand_scales(const Case& c, int tensor, Tensor& t) {
    const VkattnScales kind = tensor == 1 ? c.problem.key_scales : c.problem.value_scales;
    const std::vector<float>& given = tensor == 1 ? c.key_scales : c.value_scales;
    t.for_each_row([&](uint64_t b, uint64_t h, uint64_t s) {
        t.scales.push_back(given[kind == VKATTN_SCALES_PER_ROW    ? (b * t.heads + h) * t.seqlen + s
                                 : kind == VKATTN_SCALES_PER_HEAD ? h
                                                                  : 0]);
    });
}

Tensor tensor_of(const Case& c, int tensor, Poison poison) {
    VkattnProblem p = c.problem;
    const auto& [heads, rows, dim] = extents_of(p, tensor);
    Tensor t{p.batch, heads, rows, dim, strides_of(p, tensor), dtype_of(p, tensor), {}};
    if (t.strides.seq == VKATTN_CONTIGUOUS) t.strides.seq = t.dim;
    if (t.strides.head == VKATTN_CONTIGUOUS) t.strides.head = t.seqlen * t.dim;
    if (t.strides.batch == VKATTN_CONTIGUOUS) t.strides.batch = t.heads * t.seqlen * t.dim;
    if (t.span() > most_elements)
        throw CaseError(c.where + ": a tensor of this case is too large for the tests");
    const VkattnScales no_scales = VKATTN_SCALES_NONE;
    if ((tensor == 1 && p.key_scales != no_scales) || (tensor == 2 && p.value_scales != no_scales))
        expand_scales(c, tensor, t);
    // Blocks begin with numbers of float16.
    const VkattnDtype poisoned = blocks_of(t.dtype) != nullptr ? VKATTN_DTYPE_FLOAT16 : t.dtype;
    const uint64_t bytes = element_bytes(poisoned);
    std::array<std::byte, 4> nan, other;
    // A NaN in every type: of float32 it takes two halves.
    for (size_t i = 0; i < 4; i++) nan[i] = i % 2 == 0 ? std::byte{0xdb} : std::byte{0x7f};
    store(other.data(), poison == Poison::finite ? 3 : std::numeric_limits<double>::infinity(), poisoned);
    t.image.resize(bytes_of(t.dtype, t.span()));
    for (uint64_t at = 0; at < t.image.size(); at += bytes) {
        const bool is_nan = poison == Poison::alternating ? at / bytes % 2 == 0 : poison == Poison::nan;
        std::memcpy(t.image.data() + at, (is_nan ? nan : other).data(), bytes);
    }
    return t;
}

uint32_t alignment_of(const Case& c, const Tensor& tensor) {
    if (blocks_of(tensor.dtype) != nullptr) return 2;
    return std::max(c.problem.alignment_bytes, element_bytes(tensor.dtype));
}

// What the block map says; as in VkattnProblem.
static int block_at(const Case& c, uint64_t b, uint64_t h, uint64_t i, uint64_t j) {
    const VkattnProblem& p = c.problem;
    if (c.block_map.empty()) return 2;
    const uint64_t down = vkattn_blocks(p.seqlen_q, p.block_rows),
                   across = vkattn_blocks(p.seqlen_kv, p.block_keys),
                   batch = p.block_map_batches == 1 ? 0 : b, head = h / (p.num_heads_q / p.block_map_heads);
    return c.block_map[((batch * p.block_map_heads + head) * down + i / p.block_rows) * across +
                       j / p.block_keys];
}

double mask_at(const Case& c, const Inputs& inputs, uint64_t b, uint64_t h, uint64_t i, uint64_t j) {
    const VkattnProblem& p = c.problem;
    const int block = block_at(c, b, h, i, j);
    if (block == 0) return hidden;
    if (p.mask == VKATTN_MASK_NONE) return 0;
    uint64_t place[] = {b, h, i, j};
    if (p.mask_rank >= 3) place[1] = h / (p.num_heads_q / p.mask_extents[p.mask_rank - 3]);
    uint64_t at = 0;
    for (uint32_t axis = 0; axis < p.mask_rank; axis++) {
        const uint64_t extent = p.mask_extents[axis], index = place[4 - p.mask_rank + axis];
        if (extent != 1 && index >= extent) return hidden;  // beyond a short last extent
        at = at * extent + (extent == 1 ? 0 : index);
    }
    return block == 1 ? 0 : inputs.mask[at];
}

std::vector<bool> visible_keys(const Case& c, const Inputs& inputs) {
    const VkattnProblem& p = c.problem;
    std::vector<bool> seen(uint64_t{p.batch} * p.num_heads_kv * p.seqlen_kv, false);
    const uint64_t group = p.num_heads_q / p.num_heads_kv;
    // Without a mask and a map the heads of a group see the same.
    const uint64_t step = p.mask == VKATTN_MASK_NONE && p.block_map == 0 ? group : 1;
    for (uint64_t b = 0; b < p.batch; b++)
        for (uint64_t h = 0; h < p.num_heads_q; h += step)
            for (uint64_t i = 0; i < p.seqlen_q; i++) {
                const Range range = bounds(c, b, static_cast<int64_t>(i));
                const uint64_t row = (b * p.num_heads_kv + h / group) * p.seqlen_kv;
                for (int64_t j = range.first; j <= range.last; j++) {
                    const auto key = static_cast<uint64_t>(j);
                    if (mask_at(c, inputs, b, h, i, key) != hidden) seen[row + key] = true;
                }
            }
    return seen;
}

void write_mask_image(const Case& c, Inputs& inputs) {
    constexpr std::byte trues[] = {std::byte{1}, std::byte{0x80}, std::byte{0xff}, std::byte{2}};
    if (c.problem.mask == VKATTN_MASK_NONE) return;
    const bool boolean = c.problem.mask == VKATTN_MASK_BOOL;
    const VkattnDtype dtype = mask_dtype_of(c.problem);
    const uint64_t bytes = boolean ? 1 : element_bytes(dtype);
    const std::vector<uint64_t> rows = mask_rows(c.problem);
    inputs.mask_image.resize(mask_span(c, rows) * bytes);
    for (size_t n = 0; n < inputs.mask_image.size(); n++)  // NaN in every type, and true
        inputs.mask_image[n] = n % 2 == 0 ? std::byte{0xdb} : std::byte{0x7f};
    const uint64_t columns = rows.empty() ? 0 : inputs.mask.size() / rows.size();
    for (size_t n = 0; n < inputs.mask.size(); n++) {
        std::byte* const at = inputs.mask_image.data() + (rows[n / columns] + n % columns) * bytes;
        if (boolean)  // nonzero is true
            *at = inputs.mask[n] == hidden ? std::byte{0} : trues[n % 4];
        else
            store(at, inputs.mask[n], dtype);
    }
}

Inputs make_inputs(const Case& c, Poison poison) {
    Inputs inputs{
        tensor_of(c, 0, poison), tensor_of(c, 1, poison), tensor_of(c, 2, poison), make_mask(c), {}};
    write_mask_image(c, inputs);
    const std::vector<bool> seen = visible_keys(c, inputs);
    fill_tensor(c, 0, inputs.query, nullptr);
    fill_tensor(c, 1, inputs.key, &seen);
    fill_tensor(c, 2, inputs.value, &seen);
    if (c.problem.value_in_key != 0) {
        inputs.value = inputs.key;
        inputs.value.dim = c.problem.head_dim_v;
    }
    return inputs;
}

oracle::Problem oracle_problem(const Case& c, const Inputs& inputs) {
    oracle::Problem o = oracle_problem(c);
    if (c.problem.mask == VKATTN_MASK_NONE) return o;
    oracle::Mask mask;
    mask.additive = c.problem.mask == VKATTN_MASK_FLOAT;
    mask.extents.assign(c.problem.mask_extents, c.problem.mask_extents + c.problem.mask_rank);
    mask.values = inputs.mask;
    if (!mask.additive)
        for (double& value : mask.values) value = value == hidden ? 0 : 1;
    o.mask = std::move(mask);
    return o;
}

}  // namespace vkattn::test
