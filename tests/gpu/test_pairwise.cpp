// Every two features together, over odd shapes, forward and backward: where two features meet, faults are found, and
// all combinations would be billions.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>

#include "backward_run.hpp"
#include "case_suite.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace pairwise {
namespace {

// ---- few rows that hold every pair of levels of any two factors

struct Level {
    size_t factor, level;
};
using Row = std::vector<size_t>;  // one level a factor
// True of two levels, of different factors, that may stand together.
using Compatible = std::function<bool(Level, Level)>;
// Pairs that a row must hold more than another one does, beside the rows that are there.
using Cost = std::function<size_t(const std::vector<Row>&, const Row&)>;

// It gives the same rows for the same arguments; it is greedy, so they are not the fewest.
class Generator {
  public:
    Generator(const std::vector<size_t>& counts, Compatible compatible, Cost cost)
        : counts_(counts), compatible_(std::move(compatible)), cost_(std::move(cost)) {
        for (const size_t count : counts) {
            first_.push_back(total_);
            total_ += count;
        }
        open_.assign(total_ * total_, false);
        each_pair([&](Level a, Level b) { open(a, b) = compatible_(a, b); });
    }

    std::vector<Row> rows() {
        std::vector<Row> all;
        while (const auto pair = next_open()) {
            all.push_back(best_row(all, pair->first, pair->second));
            each_pair_of(all.back(), [&](Level a, Level b) { open(a, b) = false; });
        }
        return all;
    }

  private:
    using Draft = std::vector<std::optional<size_t>>;

    std::vector<bool>::reference open(Level a, Level b) {
        if (a.factor > b.factor) std::swap(a, b);
        return open_[(first_[a.factor] + a.level) * total_ + first_[b.factor] + b.level];
    }

    template <class Body>
    void each_pair(Body body) const {
        for (size_t a = 0; a < counts_.size(); a++)
            for (size_t b = a + 1; b < counts_.size(); b++)
                for (size_t x = 0; x < counts_[a]; x++)
                    for (size_t y = 0; y < counts_[b]; y++) body(Level{a, x}, Level{b, y});
    }

    std::optional<std::pair<Level, Level>> next_open() {
        std::optional<std::pair<Level, Level>> found;
        each_pair([&](Level a, Level b) {
            if (!found && open(a, b)) found = {a, b};
        });
        return found;
    }

    // How many open pairs a level closes beside what is chosen; none if it may not stand there.
    std::optional<size_t> gain(const Draft& row, Level level) {
        size_t closed = 0;
        for (size_t f = 0; f < row.size(); f++) {
            if (!row[f]) continue;
            if (!compatible_({f, *row[f]}, level)) return std::nullopt;
            closed += open({f, *row[f]}, level) ? 1 : 0;
        }
        return closed;
    }

    size_t best_level(const Draft& row, size_t factor) {
        std::optional<size_t> best, most;
        const size_t start = random_() % counts_[factor];  // ties go to another level each time
        for (size_t n = 0; n < counts_[factor]; n++) {
            const size_t level = (start + n) % counts_[factor];
            const auto closed = gain(row, {factor, level});
            if (!closed || (most && *closed <= *most)) continue;
            most = closed;
            best = level;
        }
        if (!best) throw std::logic_error("a factor without a compatible level");
        return *best;
    }

    // Greedy: factors in a random order, each at the level that closes most.
    Row row_with(Level a, Level b) {
        Draft row(counts_.size());
        row[a.factor] = a.level;
        row[b.factor] = b.level;
        std::vector<size_t> order(counts_.size());
        std::iota(order.begin(), order.end(), size_t{0});
        for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random_() % i]);
        for (const size_t factor : order)
            if (!row[factor]) row[factor] = best_level(row, factor);
        Row levels;
        for (const auto& level : row) levels.push_back(*level);
        return levels;
    }

    template <class Body>
    static void each_pair_of(const Row& row, Body body) {
        for (size_t a = 0; a < row.size(); a++)
            for (size_t b = a + 1; b < row.size(); b++) body(Level{a, row[a]}, Level{b, row[b]});
    }

    // The best of some rows with this pair.
    Row best_row(const std::vector<Row>& others, Level a, Level b) {
        Row best;
        std::ptrdiff_t most = 0;
        for (int tries = 0; tries < 40; tries++) {
            Row row = row_with(a, b);
            std::ptrdiff_t worth = -static_cast<std::ptrdiff_t>(cost_(others, row));
            each_pair_of(row, [&](Level x, Level y) { worth += open(x, y) ? 1 : 0; });
            if (!best.empty() && worth <= most) continue;
            most = worth;
            best = std::move(row);
        }
        return best;
    }

    std::vector<size_t> counts_, first_;
    size_t total_ = 0;
    Compatible compatible_;
    Cost cost_;
    std::vector<bool> open_;  // pairs that no row holds yet
    std::mt19937 random_;     // the same numbers everywhere
};

// ---- the features, as words of a case line

// Words in braces depend on the shape: {b}, {h}, {m} and {n} are batch, query heads, queries and keys.
struct Feature {
    const char* name;
    std::vector<std::string> levels;
};
struct Features {
    const char* name;
    RunCase run;
    std::vector<Feature> all;
};

const std::vector<std::string> visibilities = {"",
                                               "causal",
                                               "causal align=top-left",
                                               "window=9,4",
                                               "causal window=30,0",
                                               "window=20,40 align=offset offset=-30",
                                               "causal align=offset offset=110"};

const Features of_forward = {
    "pairwise",
    run_case,
    {
        {"dtype", {"dtype=f32", "dtype=f16", "dtype=bf16"}},
        {"heads", {"h=2", "hq=6 hkv=2", "hq=4 hkv=1"}},
        {"queries", {"sq=97", "sq=1", "sq=7", "sq=16", "sq=203"}},
        {"keys", {"skv=113", "skv=1", "skv=64", "skv=147", "skv=799"}},
        {"head dims", {"d=64", "d=8", "dqk=59 dv=64", "dqk=80 dv=111"}},
        {"layout", {"", "layout=bshd", "layout=bshd pad=3"}},
        {"visibility", visibilities},
        {"mask",
         {"", "mask=bool mask_shape={b},{h},{m},{n}", "mask=bool mask_shape=1,1,1,{n} mask_fill=banded",
          "mask=float mask_shape={m},{n} mask_fill=tail", "mask=float mask_shape={b},1,{m},{short_n}",
          "mask=float mask_shape={b},{h},{m},{n} mask_fill=rows",
          "mask=float mask_shape={b},1,{m},{n} mask_fill=lowest"}},
        {"softcap", {"", "softcap=3"}},
        {"lengths", {"", "{lengths}"}},
        {"offsets", {"", "{offsets}"}},
        {"splits", {"", "splits=3"}},
        {"cut", {"", "max_flops={cut}"}},
        {"invariance", {"", "batch_invariant"}},
    }};

// One pair of head dims, small and odd: each is three pipelines more for a row. cases/backward.txt has others.
const Features of_backward = {
    "backward pairwise",
    run_backward_case,
    {
        {"dtype", {"dtype=f32", "dtype=f16", "dtype=bf16"}},
        {"heads", {"h=2", "hq=6 hkv=2", "hq=4 hkv=1"}},
        {"queries", {"sq=97", "sq=1", "sq=16", "sq=203"}},
        {"keys", {"skv=113", "skv=1", "skv=64", "skv=299"}},
        {"head dims", {"dqk=27 dv=40"}},
        {"layout", {"", "layout=bshd", "layout=bshd pad=3"}},
        {"visibility", visibilities},
        {"mask",
         {"", "mask=bool mask_shape={b},{h},{m},{n}", "mask=float mask_shape={b},{h},{m},{n} mask_fill=tail",
          "mask=float mask_shape={h},{m},{n}", "mask=float mask_shape={b},{h},1,{n}",
          "mask=float mask_shape={b},1,{m},{short_n}", "mask=float mask_shape={m},{n} mask_fill=rows",
          "mask=float mask_shape={b},1,{m},{n} mask_fill=lowest"}},
        {"softcap", {"", "softcap=3"}},
        {"lengths", {"", "{lengths}"}},
        {"offsets", {"", "{offsets}"}},
        {"dlse", {"", "dlse"}},
        {"cut", {"", "max_flops={cut}"}},
    }};

// Returns one number a batch, in turn: none, all, part of what there is.
std::string in_turn(const VkattnProblem& p, size_t row, const std::vector<int64_t>& choices) {
    std::string text;
    for (uint32_t b = 0; b < p.batch; b++)
        text += fmt::format("{}{}", b == 0 ? "" : ",", choices[(row + b) % choices.size()]);
    return text;
}

// A fifth of the whole in a dispatch, but a few tiles at least.
uint64_t cut_of(const VkattnProblem& p) {
    const uint64_t per_key = 2 * (uint64_t{p.head_dim_qk} + p.head_dim_v);
    const uint64_t whole = per_key * p.batch * p.num_heads_q * p.seqlen_q * p.seqlen_kv;
    return std::max(whole / 5, per_key * 32 * 32);
}

std::string with_shape(const std::string& words, const VkattnProblem& p, size_t row) {
    const int64_t m = p.seqlen_q, n = p.seqlen_kv;
    return fmt::format(
        fmt::runtime(words), fmt::arg("b", p.batch), fmt::arg("h", p.num_heads_q), fmt::arg("m", m),
        fmt::arg("n", n),
        fmt::arg("short_n", n == 1 ? 1 : n - n / 3),  // of a single key there is no short one
        fmt::arg("lengths", "lengths=" + in_turn(p, row, {n, n / 2 + 1, n - n / 3, 0, n / 3 + 1})),
        fmt::arg("offsets", "offsets=" + in_turn(p, row, {0, n - m, -3, n / 2, -m / 2, n - 5})),
        fmt::arg("cut", cut_of(p)));
}

bool are_compatible(const std::string& a, const std::string& b) {
    // Parts of the keys that are asked for depend on seqlen_kv, which batch_invariant forbids. Offsets per batch
    // exclude every other alignment that is asked for.
    const auto are = [&](const char* x, const char* y) { return a.find(x) != a.npos && b.find(y) != b.npos; };
    return !are("splits", "batch_invariant") && !are("batch_invariant", "splits") &&
           !are("align=", "{offsets}") && !are("{offsets}", "align=");
}

class Pairs {
  public:
    explicit Pairs(const Features& features) : features_(features) {}

    std::vector<Row> rows() const {
        std::vector<size_t> counts;
        for (const Feature& feature : features_.all) counts.push_back(feature.levels.size());
        return Generator(
                   counts, [this](Level a, Level b) { return compatible(a, b); },
                   [this](const std::vector<Row>& others, const Row& row) { return cost(others, row); })
            .rows();
    }
    bool compatible(Level a, Level b) const { return are_compatible(words(a), words(b)); }
    Case case_of(const Row& row, size_t number) const {
        const size_t batch = number % 8 == 7 ? 3 : number % 8 == 3 ? 1 : 2;
        std::string plain = fmt::format("b={} seed={}", batch, number + 1), of_shape;
        for (size_t f = 0; f < row.size(); f++) {
            const std::string& chosen = words({f, row[f]});
            if (!chosen.empty()) (chosen.find('{') == chosen.npos ? plain : of_shape) += " " + chosen;
        }
        // A single query at the top left sees one key, so that its dS is 0 but for dlse: rounding cannot be held to that.
        const auto has = [&](const char* text) { return (plain + " ").find(text) != plain.npos; };
        if (&features_ == &of_backward && has(" sq=1 ") && has(" align=top-left ") && !has(" dlse "))
            plain += " dlse";
        const VkattnProblem p = parse_case(plain, features_.name).problem;
        return parse_case(plain + with_shape(of_shape, p, number),
                          fmt::format("{} {}", features_.name, number));
    }

  private:
    const std::string& words(Level level) const { return features_.all[level.factor].levels[level.level]; }

    // Pipelines take longer to build than cases to run: a row that needs none of its own is worth more.
    size_t cost(const std::vector<Row>& others, const Row& row) const {
        const std::string key = kind_of(row);
        const auto alike = [&](const Row& other) { return kind_of(other) == key; };
        const bool slow = key.find("dqk=80") != key.npos;  // to build
        return std::ranges::any_of(others, alike) ? 0 : slow ? 12 : 6;
    }
    // Rows of one kind share their pipelines.
    std::string kind_of(const Row& row) const {
        std::string kind;
        bool extra = false;
        for (size_t f = 0; f < row.size(); f++) {
            const std::string_view name = features_.all[f].name;
            const std::string& chosen = words({f, row[f]});
            if (name == "mask") kind += chosen.substr(0, std::string("mask=bool").size());
            if (name == "queries") kind += chosen == "sq=1" || chosen == "sq=7" ? "few" : "many";
            for (const char* other : {"dtype", "head dims", "softcap", "splits", "invariance"})
                if (name == other) kind += chosen;
            if (name == "mask" || name == "lengths" || name == "offsets") extra |= row[f] != 0;
        }
        return kind + (extra ? "extra" : "");
    }

    const Features& features_;
};

void run_pairs(const Features& features) {
    const Pairs pairs(features);
    std::vector<Case> cases;
    for (const Row& row : pairs.rows()) cases.push_back(pairs.case_of(row, cases.size()));
    std::set<std::string> pipelines;
    for (const Case& c : cases) pipelines.insert(c.pipeline_key());
    const std::vector<Report> reports = run_cases(cases, features.run);
    const auto cut = std::ranges::count_if(reports, [](const Report& r) { return r.segments > 1; });
    std::printf("%s: %zu cases ran, with %zu kinds of pipelines, %td in several segments\n", features.name,
                cases.size(), pipelines.size(), cut);
}

}  // namespace

TEST_CASE("the pairwise rows hold every pair, and no excluded one") {
    for (const Features* features : {&of_forward, &of_backward}) {
        const Pairs pairs(*features);
        const std::vector<Row> rows = pairs.rows();
        std::set<std::array<size_t, 4>> held;
        for (const Row& row : rows)
            for (size_t a = 0; a < row.size(); a++)
                for (size_t b = a + 1; b < row.size(); b++) {
                    CHECK(pairs.compatible({a, row[a]}, {b, row[b]}));
                    held.insert({a, row[a], b, row[b]});
                }
        size_t count = 0;
        for (size_t a = 0; a < features->all.size(); a++)
            for (size_t b = a + 1; b < features->all.size(); b++)
                for (size_t x = 0; x < features->all[a].levels.size(); x++)
                    for (size_t y = 0; y < features->all[b].levels.size(); y++)
                        count += pairs.compatible({a, x}, {b, y}) ? 1 : 0;
        CHECK(held.size() == count);
        CHECK(pairs.rows() == rows);
    }
}

TEST_CASE_FIXTURE(OnDevice, "every two features together") {
    run_pairs(of_forward);
}
TEST_CASE_FIXTURE(OnDevice, "every two features of the backward together") {
    run_pairs(of_backward);
}

}  // namespace pairwise
