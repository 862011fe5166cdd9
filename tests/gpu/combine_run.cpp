#include "combine_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

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
        const auto lse_of = [&](uint32_t part) { return static_cast<T>(parts.lse[part * parts.rows + r]); };
        for (uint32_t part = 0; part < c.num_parts; part++) most = std::max(most, lse_of(part));
        lse.push_back(most);
        if (!std::isfinite(most)) continue;
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
    image.resize(rows == 0 ? 0 : ((c.num_parts - 1) * part_stride + t.span()) * bytes);
    for (size_t i = 0; i < image.size(); i++) image[i] = i % 2 == 0 ? std::byte{0xdb} : std::byte{0x7f};
    std::mt19937 random(c.num_parts + static_cast<uint32_t>(t.dim));
    const auto uniform = [&] { return static_cast<double>(random()) / 4294967296.0 * 2 - 1; };
    for (uint32_t part = 0; part < c.num_parts; part++)
        for (uint64_t r = 0; r < rows; r++) {
            const bool empty = r % 5 == 4 || random() % 4 == 0;
            lse.push_back(static_cast<float>(empty ? minus_infinity : 20 * uniform()));
            for (uint64_t d = 0; d < t.dim; d++) {
                const double x = empty ? std::nan("") : rounded(uniform(), c.parts_dtype);
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
    for (float& x : expected.naive.out) x = oracle::round_to_storage(x, expected.storage);
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

CombineRun run_combine(Device& device, const Plan& plan, const Case& c, const Parts& parts, Place place) {
    Tensor layout = parts.layout;
    layout.dtype = c.problem.dtype;
    Guarded given(device, parts.image.size(), place, alignment_of(c, parts.layout)),
        given_lse(device, parts.lse.size() * sizeof(float), place),
        out(device, layout.span() * element_bytes(layout.dtype), place, alignment_of(c, layout)),
        lse(device, c.lse ? parts.rows * sizeof(float) : 0, place);
    given.write(parts.image);
    given_lse.write(std::as_bytes(std::span(parts.lse)));
    for (Guarded* memory : {&given, &given_lse}) memory->protect();
    for (Guarded* memory : {&out, &lse}) memory->fill(poison_word);
    VkattnCombineArgs args = combine_args();
    args.parts = given.address();
    args.parts_lse = given_lse.address();
    args.out = out.address();
    args.lse = c.lse ? lse.address() : 0;
    device.runtime().submit([&](VkCommandBuffer commands) { plan.cmd_combine(commands, args); });

    CombineRun run{{layout.gather(out.read()),
                    std::vector<float>(c.lse ? parts.rows : 0),
                    {layout.batch, layout.heads, layout.seqlen, layout.dim}},
                   ""};
    const std::vector<std::byte> lse_content = lse.read(), content = out.read();
    if (!lse_content.empty()) std::memcpy(run.outcome.lse.data(), lse_content.data(), lse_content.size());
    for (const auto& [name, memory] :
         {std::pair{"parts", &given}, {"parts_lse", &given_lse}, {"out", &out}, {"lse", &lse}})
        if (!memory->intact()) run.damage = fmt::format("memory beside {} was written to", name);
    const std::vector<bool> covered = layout.covered();
    for (size_t i = 0; i < content.size(); i++)
        if (!covered[i] && content[i] != (i % 2 == 0 ? std::byte{0xdb} : std::byte{0x7f}))
            run.damage = fmt::format("padding of out was written to, at byte {}", i);
    return run;
}

Report run_combine_case(Device& device, VkattnContext* context, const Case& c) {
    Report report;
    report.kernel = VKATTN_KERNEL_COMBINE;
    const Parts parts(c);
    const Plan plan(context, combine_of(c, parts));
    report.segments = plan.segments();
    const Expected expected = expect(c, parts);
    std::optional<Outcome> first;
    for (const Place place : places) {
        const std::string at = fmt::format("at the {}: ", name_of(place));
        const CombineRun run = run_combine(device, plan, c, parts, place);
        report.add(at, run.damage, judge(run.outcome, expected));
        if (first && !first->same_bits(run.outcome))
            report.failures.push_back(at + "other bits than at the start");
        first = run.outcome;
    }
    return report;
}

}  // namespace vkattn::test
