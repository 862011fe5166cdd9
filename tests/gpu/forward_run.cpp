#include "forward_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "interposer.hpp"
#include "skip.hpp"

namespace vkattn::test {
namespace {

constexpr uint64_t most_elements = uint64_t{1} << 28;  // of an image
constexpr uint32_t second_poison = 0xffffffff;         // NaN, too

// The rule by which a tensor's elements get their values.
struct Fill {
    std::mt19937 random;
    // About normal, with unit variance, and the same on every platform.
    double normal() {
        double sum = 0;
        for (int i = 0; i < 4; i++) sum += static_cast<double>(random()) / 4294967296.0 - 0.5;
        return sum * std::sqrt(3.0);
    }
};

// Scores that grow by this much (base e) from key to key: past every tile's rescaling threshold.
constexpr double growth_of_score = 0.6;

float value_of(const Case& c, int tensor, uint64_t row, Fill& fill) {
    const double x = fill.normal();
    const auto& p = c.problem;
    const double scale = oracle_problem(c).softmax_scale;
    const double step = growth_of_score / (p.head_dim_qk * (scale != 0 ? scale : 1));
    const auto j = static_cast<double>(row);
    double result = x;
    switch (c.values) {
        case Values::normal:
            break;
        case Values::huge:
            result = x * (tensor == 2 ? 1e6 : 10);
            break;
        case Values::equal:
            result = tensor == 2 ? x : 0.5;
            break;
        case Values::ascending:
            result = tensor == 0 ? 1 + x / 16 : tensor == 1 ? j * step : x;
            break;
        case Values::descending:
            result = tensor == 0 ? 1 + x / 16 : tensor == 1 ? -j * step : x;
            break;
    }
    return static_cast<float>(result);
}

void fill_tensor(const Case& c, int which, Tensor& t, const std::vector<bool>* rows) {
    Fill fill{std::mt19937(c.seed * 4 + static_cast<uint32_t>(which))};
    for (uint64_t b = 0; b < t.batch; b++)
        for (uint64_t h = 0; h < t.heads; h++)
            for (uint64_t s = 0; s < t.seqlen; s++)
                for (uint64_t d = 0; d < t.dim && (rows == nullptr || (*rows)[s]); d++)
                    t.image[t.at(b, h, s) + d] = value_of(c, which, s, fill);
}

std::vector<double> as_double(const std::vector<float>& x) {
    return {x.begin(), x.end()};
}

std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
    std::vector<float> x(bytes.size() / sizeof(float));
    if (!x.empty()) std::memcpy(x.data(), bytes.data(), bytes.size());
    return x;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::string compare(const char* name, const std::vector<float>& got, const std::vector<double>& exact,
                    const std::vector<float>& naive) {
    const oracle::Bound bound = oracle::check(got, exact, naive, oracle::StorageType::float32);
    if (bound.ok) return "";
    return fmt::format("{}[{}] = {}, the oracle has {}: the error {:.3g} exceeds {:.3g}", name, bound.worst,
                       got[bound.worst], exact[bound.worst], bound.measured, bound.allowed);
}

}  // namespace

uint64_t Tensor::span() const {
    if (batch * heads * seqlen * dim == 0) return 0;
    return at(batch - 1, heads - 1, seqlen - 1) + dim;
}

std::vector<float> Tensor::gather(const std::vector<float>& from) const {
    std::vector<float> dense;
    dense.reserve(batch * heads * seqlen * dim);
    for (uint64_t b = 0; b < batch; b++)
        for (uint64_t h = 0; h < heads; h++)
            for (uint64_t s = 0; s < seqlen; s++) {
                const auto row = from.begin() + static_cast<std::ptrdiff_t>(at(b, h, s));
                dense.insert(dense.end(), row, row + static_cast<std::ptrdiff_t>(dim));
            }
    return dense;
}

Tensor tensor_of(const Case& c, int tensor) {
    const VkattnProblem& p = c.problem;
    const bool of_query = tensor == 0 || tensor == 3;
    Tensor t;
    t.batch = p.batch;
    t.heads = of_query ? p.num_heads_q : p.num_heads_kv;
    t.seqlen = of_query ? p.seqlen_q : p.seqlen_kv;
    t.dim = tensor < 2 ? p.head_dim_qk : p.head_dim_v;
    const VkattnStrides* const given[] = {&p.query_strides, &p.key_strides, &p.value_strides, &p.out_strides};
    t.strides = *given[tensor];
    if (t.strides.seq == VKATTN_CONTIGUOUS) t.strides.seq = t.dim;
    if (t.strides.head == VKATTN_CONTIGUOUS) t.strides.head = t.seqlen * t.dim;
    if (t.strides.batch == VKATTN_CONTIGUOUS) t.strides.batch = t.heads * t.seqlen * t.dim;
    if (t.span() > most_elements)
        throw CaseError(c.where + ": a tensor of this case is too large for the tests");
    float poison;
    std::memcpy(&poison, &poison_word, sizeof poison);
    t.image.assign(t.span(), poison);
    return t;
}

std::vector<bool> visible_keys(const VkattnProblem& p) {
    std::vector<bool> seen(p.seqlen_kv, false);
    const auto queries = static_cast<int64_t>(p.seqlen_q), keys = static_cast<int64_t>(p.seqlen_kv);
    const int64_t offset = p.align == VKATTN_ALIGN_TOP_LEFT ? 0
                           : p.align == VKATTN_ALIGN_OFFSET ? p.query_offset
                                                            : keys - queries;
    for (int64_t i = 0; i < queries && p.batch != 0; i++) {
        const int64_t position = i + offset;
        int64_t first = 0, last = keys - 1;
        if (p.causal != 0) last = std::min(last, position);
        if (p.window_right >= 0) last = std::min(last, position + std::min(p.window_right, widest_window));
        if (p.window_left >= 0) first = std::max(first, position - std::min(p.window_left, widest_window));
        for (int64_t j = first; j <= last; j++) seen[static_cast<size_t>(j)] = true;
    }
    return seen;
}

Inputs make_inputs(const Case& c) {
    Inputs inputs{tensor_of(c, 0), tensor_of(c, 1), tensor_of(c, 2)};
    const std::vector<bool> seen = visible_keys(c.problem);
    fill_tensor(c, 0, inputs.query, nullptr);
    fill_tensor(c, 1, inputs.key, &seen);
    fill_tensor(c, 2, inputs.value, &seen);
    return inputs;
}

Expected expect(const Case& c, const Inputs& inputs) {
    const auto q = as_double(inputs.query.gather(inputs.query.image)),
               k = as_double(inputs.key.gather(inputs.key.image)),
               v = as_double(inputs.value.gather(inputs.value.image));
    const oracle::Problem p = oracle_problem(c);
    return {oracle::forward(p, q, k, v), oracle::naive_forward(p, q, k, v, oracle::StorageType::float32)};
}

bool Outcome::same_bits(const Outcome& other) const {
    return same(out, other.out) && same(lse, other.lse);
}

std::string compare(const Outcome& outcome, const Expected& expected) {
    const std::string out = compare("out", outcome.out, expected.exact.out, expected.naive.out);
    if (!out.empty() || outcome.lse.empty()) return out;
    return compare("lse", outcome.lse, expected.exact.lse, expected.naive.lse);
}

Forward::Forward(Device& device, const Plan& plan, const Case& c, const Inputs& inputs, Place place,
                 uint32_t old_content)
    : inputs_(inputs), out_layout_(tensor_of(c, 3)), old_content_(old_content) {
    const uint32_t alignment = std::max(c.problem.alignment_bytes, 4u);
    const auto tensor = [&](const Tensor& t) { return Guarded(device, t.bytes().size(), place, alignment); };
    query_ = tensor(inputs.query);
    key_ = tensor(inputs.key);
    value_ = tensor(inputs.value);
    out_ = tensor(out_layout_);
    lse_count_ = c.lse ? uint64_t{c.problem.batch} * c.problem.num_heads_q * c.problem.seqlen_q : 0;
    lse_ = Guarded(device, lse_count_ * sizeof(float), place);
    const VkattnScratch scratch = plan.scratch();
    scratch_ = Guarded(device, scratch.size_bytes, place, static_cast<uint32_t>(scratch.alignment_bytes));
    for (auto [memory, content] :
         {std::pair{&query_, &inputs.query}, {&key_, &inputs.key}, {&value_, &inputs.value}}) {
        memory->write(content->bytes());
        memory->protect();
    }
    for (Guarded* memory : {&out_, &lse_, &scratch_}) memory->fill(old_content);
    args_.query = query_.address();
    args_.key = key_.address();
    args_.value = value_.address();
    args_.out = out_.address();
    if (c.lse) args_.lse = lse_.address();
    if (scratch.size_bytes == 0) return;
    args_.scratch_buffer = scratch_.buffer();
    args_.scratch_offset = scratch_.offset_bytes();
    args_.scratch_address = scratch_.address();
}

Outcome Forward::outcome() const {
    return {out_layout_.gather(floats_of(out_.read())), floats_of(lse_.read())};
}

std::string Forward::damage() const {
    const std::tuple<const char*, const Guarded*, const Tensor*> inputs[] = {
        {"query", &query_, &inputs_.query}, {"key", &key_, &inputs_.key}, {"value", &value_, &inputs_.value}};
    for (const auto& [name, memory, content] : inputs)
        if (!memory->intact() || !std::ranges::equal(memory->read(), content->bytes()))
            return fmt::format("{} was written to", name);
    for (const auto& [name, memory] : {std::pair{"out", &out_}, {"lse", &lse_}, {"scratch", &scratch_}})
        if (!memory->intact()) return fmt::format("memory beside {} was written to", name);
    std::vector<float> content = floats_of(out_.read());
    std::vector<bool> covered(content.size(), false);
    for (uint64_t b = 0; b < out_layout_.batch; b++)
        for (uint64_t h = 0; h < out_layout_.heads; h++)
            for (uint64_t s = 0; s < out_layout_.seqlen; s++)
                std::fill_n(covered.begin() + static_cast<std::ptrdiff_t>(out_layout_.at(b, h, s)),
                            out_layout_.dim, true);
    for (size_t i = 0; i < content.size(); i++)
        if (!covered[i] && std::memcmp(&content[i], &old_content_, sizeof old_content_) != 0)
            return fmt::format("padding of out was written to, at element {}", i);
    return "";
}

Report run_case(Device& device, VkattnContext* context, const Case& c) {
    Report report;
    Plan plan;
    try {
        plan = Plan(context, c.problem, c.options());
    } catch (const Error& e) {
        // Only a tuning that was asked for may be too large for the device.
        if (e.status() == VKATTN_UNSUPPORTED && !c.tuning.empty())
            report.skipped = e.what();
        else
            report.failures.emplace_back(e.what());
        return report;
    }
    const Inputs inputs = make_inputs(c);
    const Expected expected = expect(c, inputs);
    std::optional<Outcome> first;
    for (const Place place : places) {
        const std::string at = fmt::format("at the {}: ", name_of(place));
        const Forward forward(device, plan, c, inputs, place,
                              place == Place::start ? poison_word : second_poison);
        device.runtime().submit(
            [&](VkCommandBuffer commands) { plan.cmd_forward(commands, forward.args()); });
        const Outcome outcome = forward.outcome();
        for (const std::string& what : {forward.damage(), compare(outcome, expected)})
            if (!what.empty()) report.failures.push_back(at + what);
        if (first && !first->same_bits(outcome))
            report.failures.push_back(at + "other bits than at the start");
        first = outcome;
    }
    return report;
}

namespace {

// Which device has the pipelines of a key; stays so for the life of the process.
int home_of(const std::string& key) {
    static std::map<std::string, int> homes;
    return homes.try_emplace(key, static_cast<int>(homes.size() % 2)).first->second;
}

// One device's share of the cases.
void run_share(int index, const std::vector<Case>& cases, const std::vector<int>& homes,
               std::vector<Report>& reports) {
    Device& device = Device::get(index);
    VkattnContext* const context = index == 0 ? shared_context().get() : device.runtime().context();
    for (size_t i = 0; i < cases.size(); i++) {
        if (homes[i] != index) continue;
        try {
            reports[i] = run_case(device, context, cases[i]);
        } catch (const std::exception& e) {
            reports[i].failures.emplace_back(e.what());
        }
        for (const std::string& message : device.take_messages())
            reports[i].failures.push_back("validation: " + message);
    }
}

}  // namespace

void run_cases(const std::vector<Case>& cases) {
    Device::get();
    std::vector<Report> reports(cases.size());
    std::vector<int> homes;
    for (const Case& c : cases) homes.push_back(home_of(c.pipeline_key()));
    std::thread other([&] { run_share(1, cases, homes, reports); });
    run_share(0, cases, homes, reports);
    other.join();
    for (size_t i = 0; i < cases.size(); i++) {
        const std::string name = fmt::format("{}: {}", cases[i].where, cases[i].text);
        if (!reports[i].skipped.empty()) skip(name + ": " + reports[i].skipped);
        for (const std::string& failure : reports[i].failures) FAIL_CHECK(name << "\n    " << failure);
        CHECK(reports[i].failures.empty());
    }
}

}  // namespace vkattn::test
