// Runs a case with `company`: once as it is, and once with so many query rows more before its own, of the same heads,
// keys and values. With batch_invariant its rows must have the same bits both times.
#include <fmt/format.h>

#include <cstring>

#include "forward_run.hpp"

namespace vkattn::test {
namespace {

Case with_company(Case c) {
    c.problem.seqlen_q += c.company;
    return c;
}

// Copies all rows, or only those that are `chosen`, to places that are `rows_before` further on.
void copy_rows(const Tensor& from, Tensor& to, uint64_t rows_before,
               const std::vector<bool>* chosen = nullptr) {
    for (uint64_t b = 0; b < from.batch; b++)
        for (uint64_t h = 0; h < from.heads; h++)
            for (uint64_t s = 0; s < from.seqlen; s++)
                if (chosen == nullptr || (*chosen)[(b * from.heads + h) * from.seqlen + s])
                    std::memcpy(to.row(b, h, rows_before + s), from.row(b, h, s), from.row_bytes());
}

Outcome run(Device& device, VkattnContext* context, const Case& c, const Inputs& inputs, Report& report) {
    const Plan plan = plan_of(context, c);
    const Forward forward(device, plan, c, inputs, Place::end);
    device.runtime().submit([&](VkCommandBuffer commands) { plan.cmd_forward(commands, forward.args()); });
    const Outcome outcome = forward.outcome();
    report.add(fmt::format("of {} rows: ", c.problem.seqlen_q), forward.damage(),
               judge(outcome, expect(c, inputs)));
    return outcome;
}

// Returns the rows of the case from an outcome that has rows of company before them.
Outcome own_rows(const Outcome& all, const Case& c) {
    const VkattnProblem& p = c.problem;
    const size_t dim = p.head_dim_v, more = c.company, rows = more + p.seqlen_q;
    Outcome own;
    for (size_t head = 0; head < size_t{p.batch} * p.num_heads_q; head++) {
        const auto first = static_cast<std::ptrdiff_t>(head * rows + more),
                   end = static_cast<std::ptrdiff_t>((head + 1) * rows);
        const auto wide = static_cast<std::ptrdiff_t>(dim);
        own.out.insert(own.out.end(), all.out.begin() + first * wide, all.out.begin() + end * wide);
        own.lse.insert(own.lse.end(), all.lse.begin() + first, all.lse.begin() + end);
    }
    return own;
}

}  // namespace

Report run_company_case(Device& device, VkattnContext* context, const Case& given) {
    Report report;
    Case c = given;
    Plan plan;
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
    const Inputs alone_inputs = make_inputs(c);
    Inputs inputs = make_inputs(together);
    const std::vector<bool> seen = visible_keys(c, alone_inputs);  // poison stands in for the others
    copy_rows(alone_inputs.query, inputs.query, c.company);
    copy_rows(alone_inputs.key, inputs.key, 0, &seen);
    copy_rows(alone_inputs.value, inputs.value, 0, &seen);
    const Outcome alone = run(device, context, c, alone_inputs, report),
                  all = run(device, context, together, inputs, report);
    if (!own_rows(all, c).same_bits(alone))
        report.failures.push_back(fmt::format("with {} rows before them, rows have other bits", c.company));
    return report;
}

}  // namespace vkattn::test
