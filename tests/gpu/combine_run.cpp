#include "combine_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>

#include "nonfinite.hpp"

namespace vkattn::test {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

// T is double, or float for the yardstick of the error rule.
template <class T>
void merge(const Case& c, const Parts& parts, std::vector<T>& out, std::vector<T>& lse) {
    const uint64_t dim = parts.layout.dim;
    out.assign(parts.per_part, 0);
    for (uint64_t r = 0; r < parts.rows; r++) {
        T most = -std::numeric_limits<T>::infinity(), sum = 0;
        const T sink =
            c.sinks.empty() ? most : static_cast<T>(c.sinks[r / parts.layout.seqlen % c.sinks.size()]);
        const auto lse_of = [&](uint32_t part) { return static_cast<T>(parts.lse[part * parts.rows + r]); };
        for (uint32_t part = 0; part < c.num_parts; part++) most = std::max(most, lse_of(part));
        const bool sees_none = !std::isfinite(most);
        most = std::max(most, sink);
        lse.push_back(most);
        if (sees_none) continue;
        sum = std::exp(sink - most);
        for (uint32_t part = 0; part < c.num_parts; part++) sum += std::exp(lse_of(part) - most);
        lse.back() = most + std::log(sum);
        for (uint32_t part = 0; part < c.num_parts; part++) {
            const T weight = std::exp(lse_of(part) - most) / sum;
            for (uint64_t n = r * dim; n < (r + 1) * dim && weight != 0; n++)
                out[n] += weight * static_cast<T>(parts.at(part, n));
        }
    }
}

}  // namespace

Parts::Parts(const Case& c) : layout(tensor_of(c, 3)) {
    layout.dtype = c.parts_dtype;
    const Tensor& t = layout;
    rows = t.batch * t.heads * t.seqlen;
    per_part = rows * t.dim;
    part_stride = std::max(t.batch * t.strides.batch, t.span());
    const uint64_t bytes = element_bytes(c.parts_dtype);
    image = filled(rows == 0 ? 0 : ((c.num_parts - 1) * part_stride + t.span()) * bytes, poison_word);
    std::mt19937 random(c.num_parts + static_cast<uint32_t>(t.dim));
    // float32 has the largest number of bfloat16, because a mean that is rounded up must not overflow.
    const double largest =
        oracle::largest_number(c.problem.dtype == VKATTN_DTYPE_FLOAT16 ? oracle::StorageType::float16
                                                                       : oracle::StorageType::bfloat16);
    const auto uniform = [&] { return static_cast<double>(random()) / 4294967296.0 * 2 - 1; };
    for (uint32_t part = 0; part < c.num_parts; part++)
        for (uint64_t r = 0; r < rows; r++) {
            const bool empty = r % 5 == 4 || random() % 4 == 0;
            lse.push_back(static_cast<float>(empty ? minus_infinity : 20 * uniform()));
            for (uint64_t d = 0; d < t.dim; d++) {
                const double of_row =
                    c.values == Values::limit ? (r % 2 == 0 ? largest : -largest) : uniform();
                const double x = empty ? std::nan("") : rounded(of_row, c.parts_dtype);
                dense.push_back(x);
                if (!empty) store(row(part, r) + d * bytes, x, c.parts_dtype);
            }
        }
}

std::byte* Parts::row(uint32_t part, uint64_t r) {
    const uint64_t at =
        layout.at(r / layout.seqlen / layout.heads, r / layout.seqlen % layout.heads, r % layout.seqlen);
    return image.data() + (part * part_stride + at) * element_bytes(layout.dtype);
}

Expected expect(const Case& c, const Parts& parts) {
    Expected expected;
    merge(c, parts, expected.exact.out, expected.exact.lse);
    merge(c, parts, expected.naive.out, expected.naive.lse);
    expected.storage = storage_of(c.problem.dtype);
    const float largest = oracle::largest_number(expected.storage);
    for (float& x : expected.naive.out)
        x = oracle::round_to_storage(std::clamp(x, -largest, largest), expected.storage);
    return expected;
}

VkattnCombine combine_of(const Case& c, const Parts& parts) {
    const VkattnProblem& p = c.problem;
    VkattnCombine combine = vkattn::combine();
    combine.dtype = p.dtype;
    combine.parts_dtype = c.parts_dtype;
    combine.num_parts = c.num_parts;
    combine.batch = p.batch;
    combine.num_heads = p.num_heads_q;
    combine.seqlen_q = p.seqlen_q;
    combine.head_dim_v = p.head_dim_v;
    combine.alignment_bytes = p.alignment_bytes;
    if (p.out_strides.seq == VKATTN_CONTIGUOUS) return combine;  // the defaults
    combine.part_stride = parts.part_stride;
    combine.parts_strides = combine.out_strides = p.out_strides;
    return combine;
}

Ran<Outcome> run_combine(Device& device, const Plan& plan, const Case& c, const Parts& parts, Place place) {
    RunMemory memory(device, place);
    return run_combine(memory, plan, c, parts,
                       memory.input("parts", parts.image, alignment_of(c, parts.layout)));
}

Ran<Outcome> run_combine(RunMemory& memory, const Plan& plan, const Case& c, const Parts& parts,
                         VkDeviceAddress address) {
    Tensor layout = parts.layout;
    layout.dtype = c.problem.dtype;
    VkattnCombineArgs args = combine_args();
    args.parts = address;
    args.parts_lse = memory.input("parts_lse", std::as_bytes(std::span(parts.lse)));
    args.out = memory.output("out", layout, alignment_of(c, layout));
    if (c.lse) args.lse = memory.output("lse", parts.rows * sizeof(float));
    if (!c.sinks.empty()) args.sinks = memory.input("sinks", std::as_bytes(std::span(c.sinks)));
    memory.device().runtime().submit([&](VkCommandBuffer commands) { plan.cmd_combine(commands, args); });
    return {{layout.gather(memory.content("out")),
             memory.floats("lse"),
             {layout.batch, layout.heads, layout.seqlen, layout.dim}},
            memory.damage()};
}

namespace {

// A row into which at least two parts are merged, and the first of these parts.
struct RowOfParts {
    uint64_t row;
    uint32_t part;
};
std::optional<RowOfParts> row_of_two(const Case& c, const Parts& parts) {
    for (uint64_t row = 0; row < parts.rows; row++) {
        std::vector<uint32_t> seen;
        for (uint32_t part = 0; part < c.num_parts; part++)
            if (std::isfinite(parts.lse[part * parts.rows + row])) seen.push_back(part);
        if (seen.size() > 1) return RowOfParts{row, seen[0]};
    }
    return std::nullopt;
}

std::span<const float> row_in(const Outcome& outcome, const Parts& parts, uint64_t row) {
    return std::span(outcome.out).subspan(row * parts.layout.dim, parts.layout.dim);
}

bool same_row(const Outcome& a, const Outcome& b, const Parts& parts, uint64_t row) {
    const std::span<const float> x = row_in(a, parts, row), y = row_in(b, parts, row);
    return std::memcmp(x.data(), y.data(), x.size_bytes()) == 0 &&
           std::memcmp(&a.lse[row], &b.lse[row], sizeof(float)) == 0;
}

// Returns what is wrong with a merged row after NaN or infinity was put into one of its parts: into the part's lse, or
// into its first element.
std::string flaw_of_reached(const Outcome& got, const Outcome& clean, const Parts& parts, uint64_t row,
                            bool of_lse) {
    const std::span<const float> now = row_in(got, parts, row), before = row_in(clean, parts, row);
    if (of_lse) {
        const bool all_nan = std::ranges::all_of(now, [](float x) { return std::isnan(x); });
        return all_nan && std::isnan(got.lse[row]) ? "" : "not all of the row and its lse are NaN";
    }
    if (std::isfinite(now[0])) return "its element of the merged row is finite";
    const bool others_stay =
        std::ranges::equal(now.subspan(1), before.subspan(1)) && got.lse[row] == clean.lse[row];
    return others_stay ? "" : "other elements, or the lse, have changed";
}

// NaN and infinity in a part must reach the row that it is merged into, and no other.
Report run_nonfinite_combine(Device& device, VkattnContext* context, const Case& c) {
    Report report;
    report.kernel = VKATTN_KERNEL_COMBINE;
    const Parts clean_parts(c);
    const std::optional<RowOfParts> place = row_of_two(c, clean_parts);
    if (!place) {
        report.skipped = "no row has two parts that saw something";
        return report;
    }
    const Plan plan(context, combine_of(c, clean_parts));
    report.segments = plan.segments();
    const auto [clean, damage] = run_combine(device, plan, c, clean_parts, Place::end);
    report.add("", damage, judge(clean, expect(c, clean_parts)));
    for (const auto& [of_lse, x] : {std::pair{true, not_a_number},
                                    {true, infinity},
                                    {false, not_a_number},
                                    {false, -not_a_number},
                                    {false, infinity}}) {
        Parts parts = clean_parts;
        if (of_lse)
            parts.lse[place->part * parts.rows + place->row] = x;
        else
            store(parts.row(place->part, place->row), x, c.parts_dtype);
        auto [got, flaw] = run_combine(device, plan, c, parts, Place::end);
        if (flaw.empty()) flaw = flaw_of_reached(got, clean, parts, place->row, of_lse);
        for (uint64_t row = 0; row < parts.rows && flaw.empty(); row++)
            if (row != place->row && !same_row(got, clean, parts, row))
                flaw = fmt::format("row {} has changed", row);
        if (!flaw.empty())
            report.failures.push_back(fmt::format("{} in {} of part {}, row {}: {}", x,
                                                  of_lse ? "the lse" : "element 0", place->part, place->row,
                                                  flaw));
    }
    return report;
}

}  // namespace

Report run_combine_case(Device& device, VkattnContext* context, const Case& c) {
    if (c.far == Far::part) return run_far_combine_case(device, context, c);
    if (c.nonfinite) return run_nonfinite_combine(device, context, c);
    Report report;
    report.kernel = VKATTN_KERNEL_COMBINE;
    const Parts parts(c);
    const Plan plan(context, combine_of(c, parts));
    report.segments = plan.segments();
    run_at_places(report, expect(c, parts),
                  [&](Place place) { return run_combine(device, plan, c, parts, place); });
    return report;
}

}  // namespace vkattn::test
