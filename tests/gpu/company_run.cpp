// Rows of a batch in the company of others, whose bits they must not depend on with batch_invariant. Runs a case with
// `company`: once as it is, and once with so many query rows more before its own, of the same heads, keys and values.
#include <fmt/format.h>

#include <cstring>

#include "forward_run.hpp"

namespace vkattn::test {
namespace {

// Copies all rows, or only those that are `chosen`.
void copy_rows(const Tensor& from, Tensor& to, uint32_t slot, uint32_t first_row,
               const std::vector<bool>* chosen = nullptr) {
    from.for_each_row([&](uint64_t b, uint64_t h, uint64_t s) {
        if (chosen == nullptr || (*chosen)[(b * from.heads + h) * from.seqlen + s])
            std::memcpy(to.row(slot + b, h, first_row + s), from.row(b, h, s), from.row_bytes());
    });
}

// Masks of rank 4 that broadcast nothing, of one batch and of several.
void copy_mask(const Case& alone, const Inputs& from, const Case& c, Inputs& to, uint32_t slot) {
    if (alone.problem.mask == VKATTN_MASK_NONE) return;
    const uint32_t* const n = c.problem.mask_extents;
    for (uint64_t h = 0; h < alone.problem.num_heads_q; h++)
        for (uint64_t i = 0; i < alone.problem.seqlen_q; i++)
            for (uint64_t j = 0; j < alone.problem.seqlen_kv; j++)
                to.mask[((slot * uint64_t{n[1]} + h) * n[2] + i) * n[3] + j] =
                    mask_at(alone, from, 0, h, i, j);
    write_mask_image(c, to);
}

Outcome run(Device& device, VkattnContext* context, const Case& c, const Inputs& inputs, Report& report) {
    const Plan plan = plan_of(context, c);
    const auto [outcome, damage] = Forward(device, plan, c, inputs).run(plan);
    report.add(fmt::format("of {} rows: ", c.problem.seqlen_q), damage, judge(outcome, expect(c, inputs)));
    return outcome;
}

}  // namespace

Inputs in_company(const Case& alone, const Inputs& own, const Case& c, uint32_t slot, uint32_t first_row) {
    Inputs inputs = make_inputs(c);
    const std::vector<bool> seen = visible_keys(alone, own);  // poison stands in for the others
    copy_rows(own.query, inputs.query, slot, first_row);
    copy_rows(own.key, inputs.key, slot, 0, &seen);
    copy_rows(own.value, inputs.value, slot, 0, &seen);
    copy_mask(alone, own, c, inputs, slot);
    return inputs;
}

Outcome own_rows(const Case& alone, const Case& c, const Outcome& all, uint32_t slot, uint32_t first_row) {
    const VkattnProblem &p = alone.problem, &q = c.problem;
    Outcome own;
    for (uint64_t b = 0; b < p.batch; b++)
        for (uint64_t h = 0; h < p.num_heads_q; h++)
            for (uint64_t i = 0; i < p.seqlen_q; i++) {
                const uint64_t row = ((slot + b) * q.num_heads_q + h) * q.seqlen_q + first_row + i;
                const auto begin = all.out.begin() + static_cast<std::ptrdiff_t>(row * q.head_dim_v);
                own.out.insert(own.out.end(), begin, begin + q.head_dim_v);
                own.lse.push_back(all.lse[row]);
            }
    return own;
}

Report run_company_case(Device& device, VkattnContext* context, const Case& given) {
    Report report;
    Case c = given;
    Plan plan;
    const auto with_company = [](Case of) {
        of.problem.seqlen_q += of.company;
        return of;
    };
    // Where the limit cuts a row's keys depends on the limit, so that both runs have the same one.
    const auto make = [&](Case& limited, Plan& made) {
        raise_limit(limited, [&](const Case& with_limit) {
            plan_of(context, with_company(with_limit));
            made = plan_of(context, with_limit);
        });
    };
    if (!is_planned(report, c, plan, make)) return report;
    const Case together = with_company(c);
    report.skipped = uncut(context, together, false);
    const Inputs inputs = make_inputs(c);
    const Outcome alone = run(device, context, c, inputs, report),
                  all = run(device, context, together, in_company(c, inputs, together, 0, c.company), report);
    if (!own_rows(c, together, all, 0, c.company).same_bits(alone))
        report.failures.push_back(fmt::format("with {} rows before them, rows have other bits", c.company));
    return report;
}

}  // namespace vkattn::test
