#include "forward_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "case_plan.hpp"
#include "vulkan/context.hpp"

namespace vkattn::test {
namespace {

// The place of an element, as in "[0, 3, 17, 5]".
std::string place_of(size_t index, std::span<const uint64_t> extents) {
    if (std::ranges::find(extents, uint64_t{0}) != extents.end())
        return fmt::format("[{}]", index);  // not known
    std::string place;
    for (size_t i = extents.size(); i-- > 0;) {
        place = fmt::format("{}{}{}", index % extents[i], place.empty() ? "" : ", ", place);
        index /= extents[i];
    }
    return "[" + place + "]";
}

// Log-sum-exps of rows whose only visible scores stand at the lowest float: the library clamps such scores before it
// changes their base, so that no bit of lse is promised but that the row is not taken for an empty one.
constexpr double clamped_lse = -1e37;
// Rows with scores this large are compared on their own, lest their rounding loosens the others' bound.
constexpr double large_lse = 1e4;

void judge_lse(Verdict& verdict, const Outcome& outcome, const Expected& expected) {
    constexpr float not_compared = 0;
    std::vector<float> got[2], naive[2];
    std::vector<double> exact[2];
    const auto extents = std::span(outcome.extents).first<3>();
    for (size_t i = 0; i < outcome.lse.size(); i++) {
        const double x = expected.exact.lse[i];
        const bool clamped = std::isfinite(x) && x < clamped_lse;
        if (clamped && !verdict.is_wrong() &&
            (!std::isfinite(outcome.lse[i]) || static_cast<double>(outcome.lse[i]) > clamped_lse / 2))
            verdict.fail(
                fmt::format("lse{} = {}, the oracle has {}", place_of(i, extents), outcome.lse[i], x));
        const size_t group = std::isfinite(x) && std::fabs(x) > large_lse ? 1 : 0;
        for (const size_t g : {0u, 1u}) {
            const bool compared = g == group && !clamped;
            got[g].push_back(compared ? outcome.lse[i] : not_compared);
            naive[g].push_back(compared ? expected.naive.lse[i] : not_compared);
            exact[g].push_back(compared ? x : 0);
        }
    }
    for (const size_t g : {0u, 1u})
        verdict.add(g == 0 ? "lse" : "lse, of those beyond 1e4,", extents, got[g], exact[g], naive[g],
                    oracle::StorageType::float32);
}

}  // namespace

std::vector<double> as_double(const std::vector<float>& x) {
    return {x.begin(), x.end()};
}

std::vector<double> dense(const Tensor& t) {
    return as_double(t.gather(t.image));
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

oracle::StorageType operands_of(const Case& c) {
    // Decoded blocks may be rounded to the type of the query. Numbers of another type than the query's may not.
    if (c.precision == VKATTN_PRECISION_STORAGE)
        for (const int t : {1, 2}) {
            const VkattnDtype dtype = dtype_of(c.problem, t);
            if (dtype != c.problem.dtype && blocks_of(dtype) == nullptr) return oracle::StorageType::float32;
        }
    if (c.precision == VKATTN_PRECISION_STORAGE) return storage_of(c.problem.dtype);
    return c.precision == VKATTN_PRECISION_FLOAT16 ? oracle::StorageType::float16
                                                   : oracle::StorageType::bfloat16;
}

Expected expect(const Case& c, const Inputs& inputs) {
    const auto q = dense(inputs.query), k = dense(inputs.key), v = dense(inputs.value);
    const oracle::Problem p = oracle_problem(c, inputs);
    const oracle::StorageType storage = storage_of(dtype_of(c.problem, 3)), operands = operands_of(c);
    Expected expected{oracle::forward(p, q, k, v), oracle::naive_forward(p, q, k, v, storage, operands),
                      storage};
    if (c.values == Values::quarters)
        for (const double x : expected.exact.out)
            expected.rounded.push_back(static_cast<float>(rounded(x, dtype_of(c.problem, 3))));
    return expected;
}

std::string difference_of(const char* name, std::span<const uint64_t> extents, const std::vector<float>& now,
                          const std::vector<float>& before) {
    if (now.size() != before.size())
        return fmt::format("{} has {} elements, and {} before", name, now.size(), before.size());
    for (size_t i = 0; i < now.size(); i++)
        if (std::bit_cast<uint32_t>(now[i]) != std::bit_cast<uint32_t>(before[i]))
            return fmt::format("{}{} = {}, and {} before", name, place_of(i, extents), now[i], before[i]);
    return "";
}

std::string Outcome::difference(const Outcome& before) const {
    const std::string of_out = difference_of("out", extents, out, before.out);
    return !of_out.empty() ? of_out : difference_of("lse", std::span(extents).first<3>(), lse, before.lse);
}

void Verdict::add(const char* name, std::span<const uint64_t> extents, std::span<const float> got,
                  std::span<const double> exact, std::span<const float> naive, oracle::StorageType storage) {
    const oracle::Bound bound = oracle::check(got, exact, naive, storage);
    const double part = bound.measured > 0 ? bound.measured / bound.allowed : 0;
    worst = std::isfinite(part) ? std::max(worst, part) : std::numeric_limits<double>::infinity();
    judged.push_back({name, storage, bound});
    if (bound.ok || !failure.empty()) return;
    is_inexact = std::isfinite(bound.measured) && std::isfinite(bound.allowed);
    failure = fmt::format("{}{} = {}, the oracle has {}: the error {:.3g} exceeds {:.3g}", name,
                          place_of(bound.worst, extents), got[bound.worst], exact[bound.worst],
                          bound.measured, bound.allowed);
}

Verdict judge(const Outcome& outcome, const Expected& expected) {
    Verdict verdict;
    verdict.add("out", outcome.extents, outcome.out, expected.exact.out, expected.naive.out,
                expected.storage);
    judge_lse(verdict, outcome, expected);
    for (size_t i = 0; i < expected.rounded.size() && !verdict.is_wrong(); i++)
        if (outcome.out[i] != expected.rounded[i])
            verdict.fail(fmt::format("out{} = {}, but {} is rounded to {}", place_of(i, outcome.extents),
                                     outcome.out[i], expected.exact.out[i], expected.rounded[i]));
    return verdict;
}

std::string compare(const Outcome& outcome, const Expected& expected) {
    return judge(outcome, expected).failure;
}

void Report::add(const std::string& where, const std::string& damage, const Verdict& verdict) {
    for (const std::string& what : {damage, verdict.failure})
        if (!what.empty()) failures.push_back(where + what);
    worst = std::max(worst, verdict.worst);
    judged.insert(judged.end(), verdict.judged.begin(), verdict.judged.end());
    inexact += verdict.is_inexact ? 1 : 0;
}

Forward::Forward(Device& device, const Plan& plan, const Case& c, const Inputs& inputs, Place place,
                 uint32_t old_content)
    : RunMemory(device, place, old_content), layout_(tensor_of(c, 3)) {
    add_inputs(c, inputs, args_);
    args_.out = output("out", layout_, alignment_of(c, layout_));
    if (c.lse) args_.lse = output("lse", layout_.batch * layout_.heads * layout_.seqlen * sizeof(float));
    add_scratch(plan, args_);
}

Outcome Forward::outcome() const {
    const Tensor& t = layout_;
    return {t.gather(content("out")), floats("lse"), {t.batch, t.heads, t.seqlen, t.dim}};
}

Ran<Outcome> Forward::run(const Plan& plan) const {
    device().runtime().submit([&](VkCommandBuffer commands) { plan.cmd_forward(commands, args_); });
    return {outcome(), damage()};
}

Plan plan_of(VkattnContext* context, const Case& c) {
    return Plan(context, c.problem, c.options());
}

// The batch-invariance tests need five doublings on an H200.
constexpr int most_doublings = 10;

void raise_limit(Case& c, const std::function<void(const Case&)>& plan) {
    const uint64_t asked = c.max_dispatch_flops;
    for (int doubled = 0;; doubled++) {
        try {
            plan(c);
            break;
        } catch (const Error& e) {
            if (e.field() != "options.max_dispatch_flops" || doubled == most_doublings) throw;
            c.max_dispatch_flops *= 2;
        }
    }
    if (c.max_dispatch_flops != asked)
        c.note = fmt::format("a workgroup of this device costs more than max_flops={}, so it is {}", asked,
                             c.max_dispatch_flops);
}

Case with_possible_limit(VkattnContext* context, Case c) {
    raise_limit(c, [&](const Case& with_limit) { plan_of(context, with_limit); });
    return c;
}

std::string uncut(VkattnContext* context, const Case& c, bool backward) {
    if (c.max_dispatch_flops == 0) return "";
    Case free = c;
    free.max_dispatch_flops = 0;
    const auto cut = core_plan_of(context->caps, c, backward),
               whole = core_plan_of(context->caps, free, backward);
    if (!cut || !whole || cut->dispatches.size() != whole->dispatches.size()) return "";
    return fmt::format("max_flops={}, the least that this device allows, cuts nothing", c.max_dispatch_flops);
}

bool is_quirk(const std::string& message) {
    return message.find("driver's compiler") != std::string::npos;
}

bool is_planned(Report& report, Case& c, Plan& plan, const std::function<void(Case&, Plan&)>& make,
                const std::function<bool(const std::string&)>& may_be_refused) {
    try {
        make(c, plan);
    } catch (const Error& e) {
        const bool allowed = !c.tuning.empty() || (may_be_refused && may_be_refused(e.message()));
        if (e.status() == VKATTN_UNSUPPORTED && allowed)
            report.skipped = e.what();
        else
            report.failures.emplace_back(e.what());
        return false;
    }
    report.segments = plan.segments();
    report.kernel = plan.info().kernel;
    report.note = c.note;
    return true;
}

bool is_planned(Report& report, VkattnContext* context, Case& c, Plan& plan,
                const std::function<bool(const std::string&)>& may_be_refused) {
    const auto make = [&](Case& limited, Plan& made) {
        limited = with_possible_limit(context, limited);
        made = plan_of(context, limited);
    };
    return is_planned(report, c, plan, make, may_be_refused);
}

Report run_case(Device& device, VkattnContext* context, const Case& given) {
    if (given.num_parts != 1) {
        Report refused;
        refused.failures.emplace_back("parts are of combines");
        return refused;
    }
    if (given.far == Far::lse) return run_far_lse_case(device, context, given);
    if (given.far != Far::none) return run_far_case(device, context, given);
    if (given.company != 0) return run_company_case(device, context, given);
    if (given.nonfinite) return run_nonfinite_case(device, context, given);
    Report report;
    Plan plan;
    Case c = given;
    if (!is_planned(report, context, c, plan)) return report;
    report.skipped = uncut(context, c, false);
    // Hidden content must not matter, whatever it is.
    const Inputs inputs[] = {make_inputs(c, Poison::alternating), make_inputs(c, Poison::finite)};
    run_at_places(report, expect(c, inputs[0]), [&](Place place) {
        const bool at_start = place == Place::start;
        return Forward(device, plan, c, inputs[at_start ? 0 : 1], place,
                       at_start ? poison_word : second_poison)
            .run(plan);
    });
    return report;
}

}  // namespace vkattn::test
