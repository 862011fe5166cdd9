// Every two features of the backward together, over odd shapes; and that its bits are always the same.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "backward_run.hpp"
#include "case_suite.hpp"
#include "interposer.hpp"
#include "pairwise.hpp"

using namespace vkattn::test;

namespace backward_pairwise {
namespace {

enum Factor : size_t {
    dtype,
    heads,
    seqlen_q,
    seqlen_kv,
    dims,
    layout,
    visibility,
    mask,
    softcap,
    lengths,
    offsets,
    dlse,
    max_flops,
    factor_count
};

// One pair of head dims, small and odd: each is three pipelines more for a row. cases/backward.txt has others.
const std::array<std::vector<const char*>, factor_count> levels = {{
    {"dtype=f32", "dtype=f16", "dtype=bf16"},
    {"h=2", "hq=6 hkv=2", "hq=4 hkv=1"},
    {"sq=97", "sq=1", "sq=16", "sq=203"},
    {"skv=113", "skv=1", "skv=64", "skv=299"},
    {"dqk=27 dv=40"},
    {"", "layout=bshd", "layout=bshd pad=3"},
    {"", "causal", "causal align=top-left", "window=9,4", "causal window=30,0",
     "window=20,40 align=offset offset=-30", "causal align=offset offset=110"},
    {"", "bool", "float full", "float heads", "float queries", "float short", "float rows", "float lowest"},
    {"", "softcap=3"},
    {"", "lengths"},
    {"", "offsets"},
    {"", "dlse"},
    {"", "max_flops"},
}};

bool compatible(Level a, Level b) {
    const auto are = [&](Factor f, size_t x, Factor g, size_t y) {
        return (a.factor == f && a.level == x && b.factor == g && b.level == y) ||
               (b.factor == f && b.level == x && a.factor == g && a.level == y);
    };
    // Offsets per batch exclude every other alignment that is asked for.
    for (const size_t aligned : {2u, 5u, 6u})
        if (are(visibility, aligned, offsets, 1)) return false;
    return true;
}

std::string mask_of(const VkattnProblem& p, size_t level) {
    const uint32_t b = p.batch, h = p.num_heads_q, m = p.seqlen_q, n = p.seqlen_kv;
    switch (level) {
        case 1:
            return fmt::format(" mask=bool mask_shape={},{},{},{}", b, h, m, n);
        case 2:
            return fmt::format(" mask=float mask_shape={},{},{},{} mask_fill=tail", b, h, m, n);
        case 3:  // shared by the batches
            return fmt::format(" mask=float mask_shape={},{},{}", h, m, n);
        case 4:  // shared by all queries
            return fmt::format(" mask=float mask_shape={},1,1,{}", b, n);
        case 5:  // of a single key there is no short one
            return fmt::format(" mask=float mask_shape={},1,{},{}", b, m, n == 1 ? 1 : n - n / 3);
        case 6:
            return fmt::format(" mask=float mask_shape={},{} mask_fill=rows", m, n);
        case 7:
            return fmt::format(" mask=float mask_shape={},1,{},{} mask_fill=lowest", b, m, n);
        default:
            return "";
    }
}

std::string text_of(const Row& row, size_t number) {
    std::string text = fmt::format("b={} seed={}", number % 8 == 3 ? 1 : 2, number + 1);
    for (const Factor f : {dtype, heads, seqlen_q, seqlen_kv, dims, layout, visibility, softcap, dlse})
        if (const char* const words = levels[f][row[f]]; *words != 0) text += fmt::format(" {}", words);
    const VkattnProblem p = parse_case(text, "pairwise").problem;
    text += mask_of(p, row[mask]);
    if (row[lengths] != 0) text += lengths_of(p, number);
    if (row[offsets] != 0) text += offsets_of(p, number);
    if (row[max_flops] != 0) text += cut_of(p);
    return text;
}

// Pipelines take longer to build than cases to run: a row that needs none of its own is worth more.
size_t cost(const std::vector<Row>& others, const Row& row) {
    const auto mask_type = [](const Row& r) { return r[mask] == 0 ? 0 : r[mask] < 2 ? 1 : 2; };
    const auto alike = [&](const Row& r) {
        for (const Factor f : {dtype, softcap, max_flops})
            if (r[f] != row[f]) return false;
        return mask_type(r) == mask_type(row);
    };
    return std::any_of(others.begin(), others.end(), alike) ? 0 : 8;
}

}  // namespace

TEST_CASE_FIXTURE(OnDevice, "every two features of the backward together") {
    std::vector<size_t> counts;
    for (const auto& words : levels) counts.push_back(words.size());
    const std::vector<Row> rows = all_pairs(counts, compatible, cost);
    std::vector<Case> cases;
    for (size_t i = 0; i < rows.size(); i++)
        cases.push_back(parse_case(text_of(rows[i], i), fmt::format("backward pairwise {}", i)));
    const std::vector<Report> reports = run_cases(cases, run_backward_case);
    const auto cut =
        std::count_if(reports.begin(), reports.end(), [](const Report& r) { return r.segments > 4; });
    std::printf("backward pairwise: %zu cases, %td of them cut\n", cases.size(), cut);
}

TEST_CASE_FIXTURE(OnDevice, "a hundred backwards give the same bits") {
    VkattnContext* const context = shared_context().get();
    const Case asked = parse_case(
        "b=2 hq=2 hkv=1 sq=41 skv=57 dqk=27 dv=40 dtype=f16 causal window=30,0 softcap=3 mask=float "
        "mask_shape=2,41,57 lengths=57,20 dlse layout=bshd pad=3 max_flops=400000",
        "here");
    const Case c = with_possible_backward_limit(context, asked);
    const vkattn::Plan plan = backward_plan_of(context, c);
    CHECK(plan.segments() > 3);
    const BackwardInputs inputs(c);
    const BackwardMemory memory(device, plan, c, inputs, Place::end);
    std::optional<Gradients> first;
    for (int run = 0; run < 100; run++) {
        runtime.submit([&](VkCommandBuffer commands) { plan.cmd_backward(commands, memory.args()); });
        const Gradients got = memory.gradients();
        if (!first) first = got;
        REQUIRE(got.same_bits(*first));
    }
    CHECK(compare(*first, expect_gradients(c, inputs)) == "");
    CHECK(memory.damage() == "");
}

}  // namespace backward_pairwise
