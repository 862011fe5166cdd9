// Every row of the planner's tuning tables, forced on whatever device this is: rows for GPUs run on CPUs too, where
// workgroups of several subgroups show missing barriers. A row is run, if need be in a smaller form that the test prints
// with the reason, or it is skipped with a reason.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <span>

#include "backward_run.hpp"
#include "case_plan.hpp"
#include "plan/tuning.hpp"
#include "skip.hpp"
#include "vulkan/context.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

using core::KernelKind;

bool is_cpu() {
    return Device::get().info().type == "cpu";
}

// What the planner makes of a case on this device. Builds nothing.
core::Result<core::Plan> plan_here(const std::string& text, bool backward) {
    return core_plan_of(Device::get().runtime().context()->caps, parse_case(text, "here"), backward);
}

// The numbers that differ between two texts of one form, as "threads 256 -> 128, ...".
std::string changes(std::string_view from, std::string_view to) {
    std::vector<std::string> all;
    const auto next = [](std::string_view& text) {
        const std::string_view item = text.substr(0, text.find(','));
        text.remove_prefix(std::min(text.size(), item.size() + 1));
        return item;
    };
    while (!from.empty()) {
        const std::string_view was = next(from), is = next(to);
        if (was != is)
            all.push_back(fmt::format("{} {} -> {}", was.substr(0, was.find('=')),
                                      was.substr(was.find('=') + 1), is.substr(is.find('=') + 1)));
    }
    return fmt::format("{}", fmt::join(all, ", "));
}

// The rows of a table that this device runs, and how many it cannot.
class Rows {
  public:
    explicit Rows(bool backward) : backward_(backward) {}

    void skip_row(const std::string& row, const std::string& why) {
        skip(fmt::format("tuning row {}: {}", row, why));
        skipped_.insert(row);
    }

    // Adds the row's cases: each of `sizes` with what they have in common, a tuning for one.
    void add(const std::string& row, const std::vector<std::string>& sizes, const std::string& common) {
        for (const std::string& size : sizes) {
            cases_.push_back(parse_case(size + " " + common, "tuning row " + row));
            rows_.push_back(row);
            const auto plan = plan_here(cases_.back().text, backward_);
            CAPTURE(cases_.back().text);
            CHECK((plan && plan->tuning == cases_.back().tuning));
        }
    }

    // Runs the cases. Each of the table's rows must have been run, all its cases, or skipped.
    void run(size_t row_count) const {
        const std::vector<Report> reports = run_cases(cases_, backward_ ? run_backward_case : run_case);
        std::set<std::string> done(rows_.begin(), rows_.end());
        for (size_t i = 0; i < reports.size(); i++)
            if (!reports[i].skipped.empty()) done.erase(rows_[i]);
        fmt::print("note: {} of {} tuning rows were run, {} were skipped\n", done.size(), row_count,
                   skipped_.size());
        CHECK(done.size() + skipped_.size() == row_count);
        CHECK(done.size() >= row_count / 2);
    }

  private:
    bool backward_;
    std::vector<Case> cases_;
    std::vector<std::string> rows_;  // of each case
    std::set<std::string> skipped_;
};

// The numbers that the row has on its own devices: CPUs choose their modules for every row of their own.
core::TileNumbers numbers_of(const core::TuningRow& row) {
    core::TileNumbers n = row.numbers;
    n.rolled = row.device == core::TuningRow::Device::cpu;
    return n;
}

// Those numbers without what takes a CPU seconds to compile, which are unrolled loops. The forward's rows for GPUs keep
// their modules. The backward's do not: tests/cases/backward.txt has a section for the modules.
core::TileNumbers numbers_here(const core::TuningRow& row, bool backward) {
    core::TileNumbers n = numbers_of(row);
    if (!is_cpu()) return n;
    if (backward) {
        n.rolled = 1;
        n.prefetch = 0;
    }
    n.unroll = std::min(n.unroll, n.rolled != 0 ? 1u : 2u);
    return n;
}

// The same invocations in smaller workgroups, largest first: with shorter chunks, then with fewer threads.
std::vector<core::TileNumbers> smaller_workgroups(const core::TileNumbers& whole, bool backward) {
    std::vector<core::TileNumbers> all;
    for (core::TileNumbers n = whole; n.threads >= n.lanes; n.threads /= 2) {
        // The backward's groups of lanes, of which there are fewer and fewer, share these keys evenly.
        if (backward) n.v_keys = std::gcd(n.v_keys, n.p_blocks * n.threads / n.lanes);
        n.chunk = whole.chunk;
        for (all.push_back(n); n.chunk != 0 && n.chunk % 8 == 0; all.push_back(n)) n.chunk /= 2;
    }
    return all;
}

// The row's largest head dim, or a smaller one that costs a CPU no seconds: modules for GPUs compile slowly where an
// invocation has more than two vec4 of an output row, and the others run slowly.
uint32_t head_dim_here(const core::TuningRow& row, const core::TileNumbers& n) {
    if (!is_cpu()) return row.max_head_dim;
    return std::min(row.max_head_dim, n.rolled == 0 ? 8 * n.lanes : 128 * n.q_slices);
}

// The words of a case on these numbers, with head dims that are odd and that the row is for.
std::string words_of(const core::TileNumbers& n, uint32_t head_dim, bool backward) {
    return fmt::format("dqk={} dv={} kernel={} tuning={}", backward ? head_dim - 5 : 27,
                       backward ? 27 : head_dim - 5, n.of_rows_kernel() ? "rows" : "tiles", core::to_text(n));
}

// Prints which numbers of a row are not as the table has them. It counts as a skip where the device lacks room for them.
void tell_changes(const std::string& row, const std::string& changed, const std::string& why) {
    if (!why.empty())
        skip(fmt::format("tuning row {} at its full size: {}: {}", row, changed, why));
    else if (!changed.empty())
        fmt::print("note: tuning row {}, because more would take a CPU seconds: {}\n", row, changed);
}

// Partial tiles of both kinds, a diagonal, rows that see nothing.
std::vector<std::string> forward_sizes(const core::TuningRow& row, const core::TileNumbers& n) {
    const uint32_t tile_q = n.tile_q(), tile_kv = n.tile_kv(), rows = row.max_rows;
    if (n.of_rows_kernel())
        return {fmt::format("hq=2 hkv=1 sq={} skv={}", rows / 2, 2 * tile_kv + 3),
                fmt::format("b=2 sq={} skv={} causal layout=bshd", rows - 1, tile_kv + 9),
                fmt::format("sq={} skv={} causal values=ascending", rows, rows - 1)};
    return {fmt::format("hq=2 hkv=1 sq={} skv={}", tile_q + 5, 2 * tile_kv + 3),
            fmt::format("b=2 sq={} skv={} causal layout=bshd", tile_q + 3, tile_kv + 9),
            fmt::format("sq={} skv={} causal values=ascending", tile_q + 7, tile_q - 1)};
}

// As forward_sizes, with all four gradients and that of the lse: the cases share their pipelines.
std::vector<std::string> backward_sizes(const core::TileNumbers& n) {
    const uint32_t q = n.tile_q() + 5, kv = n.tile_kv() + 9;
    return {
        fmt::format("hq=2 hkv=1 sq={} skv={} mask=float mask_shape={},{} mask_fill=rows dlse", q, kv, q, kv),
        fmt::format("sq={0} skv={1} causal layout=bshd mask=float mask_shape={0},{1} dlse", kv, q)};
}

// Adds the row in the largest form that the device has room for, or skips it.
void add_row(const core::TuningRow& row, bool backward, Rows& rows) {
    const core::TileNumbers whole = numbers_here(row, backward);
    const uint32_t head_dim = head_dim_here(row, whole);
    std::string first_why;
    for (const core::TileNumbers& n : smaller_workgroups(whole, backward)) {
        const std::string words = words_of(n, head_dim, backward);
        const auto plan = plan_here("s=1 " + words, backward);
        if (plan) {
            const auto text = [](const core::TileNumbers& numbers, uint32_t dim) {
                return fmt::format("{},head dim={}", core::to_text(numbers), dim);
            };
            tell_changes(row.name, changes(text(numbers_of(row), row.max_head_dim), text(n, head_dim)),
                         first_why);
            return rows.add(row.name, backward ? backward_sizes(n) : forward_sizes(row, n), words);
        }
        const std::string& why = plan.failure().message;
        if (first_why.empty()) first_why = why;
        CAPTURE(why);
        CHECK((why.find("shared memory") != why.npos || why.find("invocations") != why.npos));
    }
    rows.skip_row(row.name, "no room, however small its workgroups are: " + first_why);
}

void run_table(KernelKind kind) {
    const bool backward = kind == KernelKind::backward;
    size_t count = 0;
    const core::TuningRow* const table = core::tuning_rows(kind, count);
    Rows rows(backward);
    for (const core::TuningRow& row : std::span(table, count)) add_row(row, backward, rows);
    rows.run(count);
}

bool others_show_more() {
    if (!is_cpu() || Device::get().info().subgroup_size == 4) return false;
    skip("tuning rows: subgroups of 4 show more; lavapipe-128 and SwiftShader run them");
    return true;
}

bool is(const core::MatrixRow& row, uint32_t use) {
    return (row.only & use) != 0;
}

// A case's words for a matrix row at these head dims: whole vectors of 16 bytes for rows that need them, else odd ones.
std::string words_of(const core::MatrixRow& row, uint32_t head_dim, const std::string& dtype) {
    const std::string shape = is(row, core::USE_WIDE)
                                  ? fmt::format("dqk={} dv={} align_bytes=16", head_dim, head_dim - 8)
                                  : fmt::format("dqk={} dv={}", head_dim - 5, head_dim - 3);
    return fmt::format("{} dtype={} kernel={}", shape, dtype,
                       is(row, core::USE_SHARED) ? "matrix_khr" : "matrix");
}

// As forward_sizes. A matrix unit's own shape is the device's, so the plan says what the tiles are. Strides of the masks
// are divided by the same power of two, and the cases so share their pipelines.
std::vector<std::string> matrix_sizes(const core::MatrixRow& row, const core::Tiles& tiles) {
    std::vector<std::string> all;
    for (const auto& [more_q, skv, words] : {std::tuple{5u, 2 * tiles.tile_kv + 10, "hq=2 hkv=1"},
                                             {3u, tiles.tile_kv + 6, "b=2 causal layout=bshd"},
                                             {7u, tiles.tile_q - 2, "causal values=ascending"}}) {
        all.push_back(fmt::format("sq={} skv={} {}", tiles.tile_q + more_q, skv, words));
        if (is(row, core::USE_BIAS))
            all.back() += fmt::format(" mask=float mask_shape={},{}", tiles.tile_q + more_q, skv);
    }
    return all;
}

// The storage type that the row is for, or float16 where the device has no matrix unit for it.
std::string dtype_of(const core::MatrixRow& row) {
    if (!is(row, core::USE_BFLOAT16)) return "f16";
    if (Device::get().has_matrix_unit(VKATTN_DTYPE_BFLOAT16)) return "bf16";
    skip(fmt::format(
        "tuning row {} in bfloat16: the device has no matrix unit for it; float16 runs its numbers",
        row.name));
    return "f16";
}

// Adds the row at the largest head dims that the device has room for; its numbers stay.
void add_row(const core::MatrixRow& row, Rows& rows) {
    const std::string dtype = dtype_of(row);
    std::string first_why;
    for (uint32_t head_dim = row.max_head_dim; head_dim >= 32; head_dim -= 16) {
        const std::string words = words_of(row, head_dim, dtype);
        const std::string mask = is(row, core::USE_BIAS) ? " mask=float mask_shape=2,2" : "";
        const auto own = plan_here(fmt::format("s=2 {}{}", words, mask), false);
        if (!own) return rows.skip_row(row.name, own.failure().message);
        core::MatrixNumbers n = row.numbers;
        n.rolled = is_cpu();
        n.move = own->dispatches.back().specialization[SPEC_P_MOVE];
        const std::string all = fmt::format("{} tuning={}", words, core::to_text(n));
        const auto plan = plan_here(fmt::format("s=2 {}{}", all, mask), false);
        if (plan) {
            tell_changes(
                row.name,
                changes(fmt::format("head dim={}", row.max_head_dim), fmt::format("head dim={}", head_dim)),
                first_why);
            if (is(row, core::USE_SHARED)) CHECK(n.move >= MOVE_SHARED);
            const std::string module = core::name_of(plan->dispatches.back().variant);
            CHECK(module.ends_with("_bias") == is(row, core::USE_BIAS));
            return rows.add(row.name, matrix_sizes(row, plan->tiles), all);
        }
        const std::string& why = plan.failure().message;
        if (first_why.empty()) first_why = why;
        if (why.find("shared memory") == why.npos) break;
    }
    rows.skip_row(row.name, first_why);
}

}  // namespace

TEST_CASE_FIXTURE(OnDevice, "every tuning row of the forward is right on odd shapes") {
    if (!others_show_more()) run_table(KernelKind::tiles);
}

TEST_CASE_FIXTURE(OnDevice, "every tuning row of the backward is right on odd shapes") {
    if (!others_show_more()) run_table(KernelKind::backward);
}

TEST_CASE_FIXTURE(OnDevice, "every tuning row of the matrix kernel is right on odd shapes") {
    if (!device.has_matrix_unit(VKATTN_DTYPE_FLOAT16))
        return skip("matrix tuning rows: there is no matrix unit");
    if (is_cpu() && device.info().subgroup_size != 8)
        return skip("matrix tuning rows: of CPUs, lavapipe at 256 bits runs them");
    Rows rows(false);
    for (const core::MatrixRow& row : core::matrix_rows()) add_row(row, rows);
    rows.run(core::matrix_rows().size());
}
