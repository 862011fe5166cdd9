// These tests force every row of the planner's tuning tables on whatever device this is. Rows for GPUs run on CPUs too,
// where workgroups of several subgroups show missing barriers. A test runs each row or skips it with a reason. Where it
// changes a row's numbers, because the device is too small or too slow for them, it prints the changes.
// VKATTN_TEST_ROWS=I/N runs the Ith of N shares of each table: on two cores the whole takes a CPU ten minutes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <set>
#include <span>

#include "backward_run.hpp"
#include "case_plan.hpp"
#include "case_suite.hpp"
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

// Plans a case on this device without building a pipeline.
core::Result<core::Plan> plan_here(const std::string& text, bool backward) {
    return core_plan_of(Device::get().runtime().context()->caps, parse_case(text, "here"), backward);
}

// Two texts name the same numbers in the same order. This lists those that differ, as "threads 256 -> 128, ...".
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

// Collects the cases of a table's rows and notes which rows this device cannot run, or leaves to another share.
class Rows {
  public:
    explicit Rows(bool backward) : backward_(backward), share_(share_named("VKATTN_TEST_ROWS")) {}

    // Returns true if the next row of the table is not run, and notes why: it is of another share, or of other devices.
    template <class Row>
    bool passes(const Row& row) {
        if (!share_.has(next_++)) {
            others_++;
            return true;
        }
        if (row.device != core::DeviceKind::cpu || is_cpu()) return false;
        skip_row(row.name, "a GPU never chooses a row of CPUs");
        return true;
    }

    void skip_row(const std::string& row, const std::string& why) {
        skip(fmt::format("tuning row {}: {}", row, why));
        skipped_.insert(row);
    }

    // Adds a case for each of `sizes`. All of them have the words `common`, which include the tuning.
    void add(const std::string& row, const std::vector<std::string>& sizes, const std::string& common) {
        for (const std::string& size : sizes) {
            cases_.push_back(parse_case(size + " " + common, "tuning row " + row));
            rows_.push_back(row);
            const auto plan = plan_here(cases_.back().text, backward_);
            CAPTURE(cases_.back().text);
            CHECK((plan && plan->tuning == cases_.back().tuning));
        }
    }

    // Runs the cases. Fails if the share has a row that was not skipped and of which a case did not run.
    void run(size_t row_count) const {
        const std::vector<Report> reports = run_cases(cases_, backward_ ? run_backward_case : run_case);
        std::set<std::string> done(rows_.begin(), rows_.end());
        for (size_t i = 0; i < reports.size(); i++)
            if (!reports[i].skipped.empty()) done.erase(rows_[i]);
        fmt::print("note: {} of {} tuning rows were run, {} were skipped\n", done.size(), row_count,
                   skipped_.size());
        if (others_ != 0) skip(fmt::format("{} tuning rows are of other shares (VKATTN_TEST_ROWS)", others_));
        CHECK(done.size() + skipped_.size() + others_ == row_count);
        // A share has two or three rows, which may all be for other devices.
        if (others_ == 0) CHECK(done.size() >= row_count / 2);
    }

  private:
    bool backward_;
    Share share_;
    size_t next_ = 0, others_ = 0;  // rows of the table so far; of these, the rows of other shares
    std::vector<Case> cases_;
    std::vector<std::string> rows_;  // of each case
    std::set<std::string> skipped_;
};

// The table leaves `rolled` to the device, so this sets it as the row's own devices do.
core::TileNumbers numbers_of(const core::TuningRow& row) {
    core::TileNumbers n = row.numbers;
    n.rolled = row.device == core::DeviceKind::cpu;
    return n;
}

// CPUs take seconds to compile unrolled loops, so these numbers have fewer. The forward's rows for GPUs keep the
// modules for GPUs. The backward's take those for CPUs: tests/cases/backward.txt has a section for its other modules.
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

// Lists ever smaller workgroups whose invocations do the same work. Chunks shrink first, because threads show more.
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

// Writes the words of a case that force these numbers, with odd head dims that the row is for.
std::string words_of(const core::TileNumbers& n, uint32_t head_dim, bool backward) {
    return fmt::format("dqk={} dv={} kernel={} tuning={}", backward ? head_dim - 5 : 27,
                       backward ? 27 : head_dim - 5, n.of_rows_kernel() ? "rows" : "tiles", core::to_text(n));
}

// Prints which numbers of a row are not the table's. It counts as a skip if the device has no room for the table's.
void tell_changes(const std::string& row, const std::string& changed, const std::string& why) {
    if (!why.empty())
        skip(fmt::format("tuning row {} at its full size: {}: {}", row, changed, why));
    else if (!changed.empty())
        fmt::print("note: tuning row {}, because more would take a CPU seconds: {}\n", row, changed);
}

// These lengths have partial tiles of queries and of keys, a diagonal, and rows that see nothing.
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

// These lengths are chosen as for the forward. Both cases take a gradient of the lse and compute that of the mask, and
// so share their pipelines.
std::vector<std::string> backward_sizes(const core::TileNumbers& n) {
    const uint32_t q = n.tile_q() + 5, kv = n.tile_kv() + 9;
    return {
        fmt::format("hq=2 hkv=1 sq={} skv={} mask=float mask_shape={},{} mask_fill=rows dlse", q, kv, q, kv),
        fmt::format("sq={0} skv={1} causal layout=bshd mask=float mask_shape={0},{1} dlse", kv, q)};
}

// Adds the row in the largest form that the device has room for, or skips it.
void add_row(const core::TuningRow& row, bool backward, Rows& rows) {
    if (rows.passes(row)) return;
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
    const core::DeviceCaps& caps = Device::get().runtime().context()->caps;
    if (!is_cpu() || (caps.subgroup_size == 4 && caps.storage_16bit)) return false;
    skip("tuning rows: lavapipe-128 runs them, whose subgroups are small, and which builds them fastest");
    return true;
}

bool is(const core::MatrixRow& row, uint32_t use) {
    return (row.only & use) != 0;
}

// Writes the words of a case for a matrix row. Head dims are whole vectors of 16 bytes if the row needs them, else odd.
std::string words_of(const core::MatrixRow& row, uint32_t head_dim, const std::string& dtype) {
    const std::string shape = is(row, core::USE_WIDE)
                                  ? fmt::format("dqk={} dv={} align_bytes=16", head_dim, head_dim - 8)
                                  : fmt::format("dqk={} dv={}", head_dim - 5, head_dim - 3);
    return fmt::format("{} dtype={} kernel={}", shape, dtype,
                       is(row, core::USE_SHARED) ? "matrix_khr" : "matrix");
}

// These lengths are chosen as for the forward, from the plan's tiles, because the device's matrix unit determines them.
// Masks have strides that the same power of two divides, so that the cases share their pipelines. Growing scores end at
// 256 head dims: beyond, an H200's matrix units, which do not round their sums to nearest, give an lse of 75.69 with an
// error of 3e-6 of it at 571 head dims, where the error rule allows 2e-6.
std::vector<std::string> matrix_sizes(const core::MatrixRow& row, const core::Tiles& tiles) {
    std::vector<std::string> all;
    for (const auto& [more_q, skv, words] :
         {std::tuple{5u, 2 * tiles.tile_kv + 10, "hq=2 hkv=1"},
          {3u, tiles.tile_kv + 6, "b=2 causal layout=bshd"},
          {7u, tiles.tile_q - 2, row.max_head_dim > 256 ? "causal" : "causal values=ascending"}}) {
        all.push_back(fmt::format("sq={} skv={} {}", tiles.tile_q + more_q, skv, words));
        if (is(row, core::USE_BIAS))
            all.back() += fmt::format(" mask=float mask_shape={},{}", tiles.tile_q + more_q, skv);
    }
    return all;
}

// Returns the storage type that the row is for, or float16 if the device has no matrix unit for that.
std::string dtype_of(const core::MatrixRow& row) {
    if (!is(row, core::USE_BF16)) return "f16";
    if (Device::get().has_matrix_unit(VKATTN_DTYPE_BFLOAT16)) return "bf16";
    skip(fmt::format(
        "tuning row {} in bfloat16: the device has no matrix unit for it; float16 runs its numbers",
        row.name));
    return "f16";
}

// Adds a row of matrix units at the largest head dims that the device has room for; its numbers stay, but for those
// that follow from the matrix unit. Of head dims `words` makes the words of a case, and of those `own` a case whose
// plan has what follows; a case with `small` beside the words shows if there is room; `sizes` are that plan's cases.
template <class Row, class Words, class Own, class Sizes>
void add_at_largest(const Row& row, bool backward, Rows& rows, const Words& words, const Own& own,
                    const std::string& small, const Sizes& sizes) {
    std::string first_why;
    for (uint32_t head_dim = row.max_head_dim; head_dim >= 24; head_dim -= 16) {
        const auto own_plan = plan_here(own(words(head_dim)), backward);
        if (!own_plan) return rows.skip_row(row.name, own_plan.failure().message);
        auto n = row.numbers;
        n.rolled = is_cpu();
        n.move = core::constant_of(own_plan->pipelines.back(), "p_move");
        const std::string all = fmt::format("{} tuning={}", words(head_dim), core::to_text(n));
        const auto plan = plan_here(fmt::format("{} {}", small, all), backward);
        if (plan) {
            tell_changes(
                row.name,
                changes(fmt::format("head dim={}", row.max_head_dim), fmt::format("head dim={}", head_dim)),
                first_why);
            return rows.add(row.name, sizes(*plan, n), all);
        }
        const std::string& why = plan.failure().message;
        if (first_why.empty()) first_why = why;
        if (why.find("shared memory") == why.npos && why.find("head dims") == why.npos) break;
    }
    rows.skip_row(row.name, first_why);
}

void add_row(const core::MatrixRow& row, Rows& rows) {
    if (rows.passes(row)) return;
    const std::string dtype = dtype_of(row),
                      mask = is(row, core::USE_BIAS) ? " mask=float mask_shape=2,2" : "";
    add_at_largest(
        row, false, rows, [&](uint32_t head_dim) { return words_of(row, head_dim, dtype); },
        [&](const std::string& words) { return "s=2 " + words + mask; }, "s=2" + mask,
        [&](const core::Plan& plan, const core::MatrixNumbers& n) {
            if (is(row, core::USE_SHARED)) CHECK(n.move >= MOVE_SHARED);
            CHECK(plan.pipelines.front().module.has(core::macros::BIAS) == is(row, core::USE_BIAS));
            return matrix_sizes(row, plan.tiles);
        });
}

// Both passes have more than one tile in both directions. Rows of the mask lie 16 bytes apart or a multiple of that,
// and its tiles are more than one.
void add_row(const core::BackwardMatrixRow& row, Rows& rows) {
    if (rows.passes(row)) return;
    add_at_largest(
        row, true, rows,
        [&](uint32_t head_dim) {
            return fmt::format("dqk={} dv={} dtype=f16 kernel=matrix", head_dim - 5,
                               row.numbers.kv_paired != 0 ? head_dim - 5 : head_dim - 3);
        },
        [](const std::string&) { return "s=2 dqk=8 dv=8 dtype=f16 kernel=matrix"; },
        "s=16 mask=float mask_shape=16,16",
        [](const core::Plan& plan, const core::BackwardMatrixNumbers& n) -> std::vector<std::string> {
            const uint32_t held = std::max(plan.tiles.tile_q, n.kv_held());
            const uint32_t queries = 16 * (n.mask_subgroups * n.mask_row_blocks + 1),
                           keys = n.mask_keys() + 48;
            return {fmt::format("sq={} skv={} hq=2 hkv=1", held + 5, held + 10),
                    fmt::format("sq={} skv={} b=2 causal layout=bshd", held + 3, held + 6),
                    fmt::format("sq={0} skv={1} h=2 mask=float mask_shape={0},{1}", queries, keys)};
        });
}

// Runs a table of matrix units.
template <class Table>
void run_matrix_table(const Table& table, bool backward) {
    if (!Device::get().has_matrix_unit(VKATTN_DTYPE_FLOAT16))
        return skip("matrix tuning rows: there is no matrix unit");
    if (is_cpu() && Device::get().info().subgroup_size != 8)
        return skip("matrix tuning rows: of CPUs, lavapipe at 256 bits runs them");
    Rows rows(backward);
    for (const auto& row : table) add_row(row, rows);
    rows.run(table.size());
}

}  // namespace

TEST_CASE_FIXTURE(OnDevice, "every tuning row of the forward is right on odd shapes") {
    if (!others_show_more()) run_table(KernelKind::tiles);
}

TEST_CASE_FIXTURE(OnDevice, "every tuning row of the backward is right on odd shapes") {
    if (!others_show_more()) run_table(KernelKind::backward);
}

TEST_CASE_FIXTURE(OnDevice, "every tuning row of the matrix kernel is right on odd shapes") {
    run_matrix_table(core::matrix_rows(), false);
}

TEST_CASE_FIXTURE(OnDevice, "every tuning row of the backward on matrix units is right on odd shapes") {
    run_matrix_table(core::backward_matrix_rows(), true);
}
