// Every two features together, over odd shapes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "case_suite.hpp"
#include "pairwise.hpp"

using namespace vkattn::test;

namespace pairwise {
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
    splits,
    max_flops,
    invariant,
    factor_count
};

// Words of a case line. Some are made when the shape is known: see text_of.
const std::array<std::vector<const char*>, factor_count> levels = {{
    {"dtype=f32", "dtype=f16", "dtype=bf16"},
    {"h=2", "hq=6 hkv=2", "hq=4 hkv=1"},
    {"sq=97", "sq=1", "sq=7", "sq=16", "sq=203"},
    {"skv=113", "skv=1", "skv=64", "skv=147", "skv=799"},
    {"d=64", "d=8", "dqk=59 dv=64", "dqk=80 dv=111"},
    {"", "layout=bshd", "layout=bshd pad=3"},
    {"", "causal", "causal align=top-left", "window=9,4", "causal window=30,0",
     "window=20,40 align=offset offset=-30", "causal align=offset offset=110"},
    {"", "bool full", "bool keys", "float rank 2", "float short", "float rows hidden", "float lowest"},
    {"", "softcap=3"},
    {"", "lengths"},
    {"", "offsets"},
    {"", "splits=3"},
    {"", "max_flops"},
    {"", "batch_invariant"},
}};

bool compatible(Level a, Level b) {
    const auto are = [&](Factor f, size_t x, Factor g, size_t y) {
        return (a.factor == f && a.level == x && b.factor == g && b.level == y) ||
               (b.factor == f && b.level == x && a.factor == g && a.level == y);
    };
    // Parts of the keys that are asked for depend on seqlen_kv, which batch_invariant forbids.
    if (are(splits, 1, invariant, 1)) return false;
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
            return fmt::format(" mask=bool mask_shape=1,1,1,{} mask_fill=banded", n);
        case 3:
            return fmt::format(" mask=float mask_shape={},{} mask_fill=tail", m, n);
        case 4:  // of a single key there is no short one
            return fmt::format(" mask=float mask_shape={},1,{},{}", b, m, n == 1 ? 1 : n - n / 3);
        case 5:
            return fmt::format(" mask=float mask_shape={},{},{},{} mask_fill=rows", b, h, m, n);
        case 6:
            return fmt::format(" mask=float mask_shape={},1,{},{} mask_fill=lowest", b, m, n);
        default:
            return "";
    }
}

std::string text_of(const Row& row, size_t number) {
    std::string text = fmt::format("b={} seed={}", number % 8 == 7 ? 3 : number % 8 == 3 ? 1 : 2, number + 1);
    for (const Factor f :
         {dtype, heads, seqlen_q, seqlen_kv, dims, layout, visibility, softcap, splits, invariant})
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
    const auto mask_type = [](const Row& r) { return r[mask] == 0 ? 0 : r[mask] < 3 ? 1 : 2; };
    const auto few_rows = [](const Row& r) { return r[seqlen_q] == 1 || r[seqlen_q] == 2; };
    const auto extra = [](const Row& r) { return r[mask] + r[lengths] + r[offsets] != 0; };
    const auto alike = [&](const Row& r) {
        for (const Factor f : {dtype, dims, softcap, splits, invariant})
            if (r[f] != row[f]) return false;
        return mask_type(r) == mask_type(row) && few_rows(r) == few_rows(row) && extra(r) == extra(row);
    };
    const bool slow = row[dims] == 3;  // to build
    return std::any_of(others.begin(), others.end(), alike) ? 0 : slow ? 12 : 6;
}

std::vector<Row> rows() {
    std::vector<size_t> counts;
    for (const auto& words : levels) counts.push_back(words.size());
    return all_pairs(counts, compatible, cost);
}

}  // namespace

TEST_CASE("the pairwise rows hold every pair, and no excluded one") {
    std::set<std::array<size_t, 4>> held;
    for (const auto& row : rows())
        for (size_t a = 0; a < row.size(); a++)
            for (size_t b = a + 1; b < row.size(); b++) {
                CHECK(compatible({a, row[a]}, {b, row[b]}));
                held.insert({a, row[a], b, row[b]});
            }
    size_t pairs = 0;
    for (size_t a = 0; a < factor_count; a++)
        for (size_t b = a + 1; b < factor_count; b++)
            for (size_t x = 0; x < levels[a].size(); x++)
                for (size_t y = 0; y < levels[b].size(); y++) pairs += compatible({a, x}, {b, y}) ? 1 : 0;
    CHECK(held.size() == pairs);
    CHECK(rows() == rows());
}

TEST_CASE_FIXTURE(OnDevice, "every two features together") {
    std::vector<Case> cases;
    std::set<std::string> pipelines;
    for (const auto& row : rows()) {
        const size_t number = cases.size();
        cases.push_back(parse_case(text_of(row, number), fmt::format("pairwise {}", number)));
        pipelines.insert(cases.back().pipeline_key());
    }
    const std::vector<Report> reports = run_cases(cases);
    const auto cut =
        std::count_if(reports.begin(), reports.end(), [](const Report& r) { return r.segments > 1; });
    std::printf("pairwise: %zu cases ran, with %zu kinds of pipelines, %td in several segments\n",
                cases.size(), pipelines.size(), cut);
}

}  // namespace pairwise
