#include "gate/loops.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace vkattn::test {
namespace {

using Kind = AssemblyLine::Kind;

bool is_exponent(const AssemblyLine& line) {
    const std::string_view name = line.name;
    return name.find("exp2") != name.npos || name.starts_with("v_exp_") || name.starts_with("v_dual_exp_") ||
           name.starts_with("mufu.ex");
}

struct Block {
    std::vector<AssemblyLine> lines;
    std::vector<size_t> next;  // blocks that may follow
};

std::vector<Block> blocks_of(const std::vector<AssemblyLine>& lines) {
    std::vector<Block> blocks(1);
    std::map<std::string, size_t, std::less<>> labels;
    std::vector<std::pair<size_t, std::string>> branches;
    bool falls_through = true;
    const auto begin_block = [&] {
        if (falls_through) blocks.back().next.push_back(blocks.size());
        blocks.emplace_back();
        falls_through = true;
    };
    for (const AssemblyLine& line : lines) {
        if (line.kind == Kind::label) {
            if (!blocks.back().lines.empty() || !falls_through || labels.empty()) begin_block();
            labels[line.name] = blocks.size() - 1;
            continue;
        }
        blocks.back().lines.push_back(line);
        if (line.kind == Kind::instruction) continue;
        branches.emplace_back(blocks.size() - 1, line.target);
        falls_through = line.kind == Kind::branch;
        begin_block();
    }
    for (const auto& [from, target] : branches)
        if (const auto at = labels.find(target); at != labels.end()) blocks[from].next.push_back(at->second);
    return blocks;
}

struct Path {
    LoopCounts counts;
    // By multiplications, then by loads from memory, because every pass but the last ones loads a tile ahead.
    bool is_better_than(const Path& other) const {
        const LoopCounts& o = other.counts;
        if (counts.multiplications() != o.multiplications())
            return counts.multiplications() > o.multiplications();
        if (counts.global_loads != o.global_loads) return counts.global_loads > o.global_loads;
        return counts.instructions() < o.instructions();
    }
    // A softmax has multiply-adds of its own, beside products of matrices.
    double instructions_of_a_product() const {
        const uint64_t products = counts.matrix != 0 ? counts.matrix : counts.multiplications();
        return static_cast<double>(counts.instructions()) / static_cast<double>(products);
    }
};

void add(const LoopCounts& more, LoopCounts& sum) {
    for (uint64_t LoopCounts::*const field :
         {&LoopCounts::matrix, &LoopCounts::fma, &LoopCounts::dot, &LoopCounts::transcendental,
          &LoopCounts::vector, &LoopCounts::paired, &LoopCounts::scalar, &LoopCounts::global_loads,
          &LoopCounts::waits, &LoopCounts::barriers})
        sum.*field += more.*field;
    for (const auto& [bits, times] : more.lds_loads) sum.lds_loads[bits] += times;
    for (const auto& [bits, times] : more.lds_stores) sum.lds_stores[bits] += times;
}

// Finds the best path from block `first` to `last`, which branches back to it, past blocks that are to be avoided.
// Blocks come in an order in which only loops branch backward.
std::optional<Path> best_path(const std::vector<Block>& blocks, const std::vector<LoopCounts>& of_block,
                              size_t first, size_t last, const std::vector<bool>& avoided = {}) {
    std::vector<std::optional<Path>> best(last - first + 1);
    best[0] = Path{of_block[first]};
    for (size_t b = first; b <= last; b++) {
        if (!best[b - first]) continue;
        for (const size_t next : blocks[b].next) {
            if (next <= b || next > last || (!avoided.empty() && avoided[next])) continue;
            Path path = *best[b - first];
            add(of_block[next], path.counts);
            std::optional<Path>& there = best[next - first];
            if (!there || path.is_better_than(*there)) there = std::move(path);
        }
    }
    return best.back();
}

struct Loop {
    size_t first, last;  // blocks
    Path path;
};

// Blocks from which a loop's last one is reached without passing its first: NAK puts the last one behind other loops.
std::vector<bool> body_of(const std::vector<Block>& blocks, size_t first, size_t last) {
    std::vector<std::vector<size_t>> before(blocks.size());
    for (size_t b = 0; b < blocks.size(); b++)
        for (const size_t next : blocks[b].next) before[next].push_back(b);
    std::vector<bool> body(blocks.size(), false);
    body[first] = true;
    std::vector<size_t> open = {last};
    while (!open.empty()) {
        const size_t b = open.back();
        open.pop_back();
        if (body[b]) continue;
        body[b] = true;
        open.insert(open.end(), before[b].begin(), before[b].end());
    }
    return body;
}

// How often blocks run in one pass of a loop: the loops inside it, as often as `work` asks for. All loops multiply.
class BlockTimes {
  public:
    BlockTimes(const std::vector<Block>& blocks, const std::vector<Loop>& loops, const Loop& steady,
               size_t first_exponent, const LoopWork& work)
        : times_(blocks.size(), 1.0) {
        const std::vector<bool> in_steady = body_of(blocks, steady.first, steady.last);
        for (const Loop& loop : loops) {
            const double multiplications = static_cast<double>(loop.path.counts.multiplications());
            if (loop.first == steady.first || !in_steady[loop.first]) continue;
            const std::vector<bool> body = body_of(blocks, loop.first, loop.last);
            const auto same = std::ranges::find(inner_, loop.first, &Inner::first);
            if (same == inner_.end()) {
                inner_.push_back({loop.first, multiplications, body});
                continue;
            }
            for (size_t b = 0; b < body.size(); b++) same->body[b] = same->body[b] || body[b];
            same->multiplications = std::max(same->multiplications, multiplications);
        }
        std::vector<Inner> ahead, behind;
        for (const Inner& loop : inner_)
            if (!has_outer(loop)) (loop.first < first_exponent ? ahead : behind).push_back(loop);
        run(ahead, work.qk);
        run(behind, work.pv);
    }

    uint64_t of(size_t block) const { return static_cast<uint64_t>(std::llround(times_[block])); }

  private:
    struct Inner {
        size_t first;
        double multiplications;  // of a pass
        std::vector<bool> body;
    };
    static bool is_inside(const Inner& inner, const Inner& outer) {
        return inner.first != outer.first && outer.body[inner.first];
    }
    bool has_outer(const Inner& loop) const {
        return std::ranges::any_of(inner_, [&](const Inner& other) { return is_inside(loop, other); });
    }
    void multiply(const Inner& loop, double times) {
        for (size_t b = 0; b < times_.size(); b++)
            if (loop.body[b]) times_[b] *= std::max(times, 1.0);
    }
    // The copies that a compiler has made of one loop share a product evenly.
    void run(const std::vector<Inner>& copies, const LoopWork::Product& product) {
        const auto number = static_cast<double>(copies.size());
        for (const Inner& loop : copies) {
            const double share = product.multiplications / number;
            double in_inner = 0;
            for (const Inner& inner : inner_)
                if (is_inside(inner, loop)) in_inner += inner.multiplications;
            if (in_inner == 0) {
                multiply(loop, share / loop.multiplications);
                continue;
            }
            const double stages = std::max(product.stages / number, 1.0);
            multiply(loop, stages);
            for (const Inner& inner : inner_)
                if (is_inside(inner, loop)) multiply(inner, share / stages / in_inner);
        }
    }

    std::vector<Inner> inner_;
    std::vector<double> times_;
};

// The best of the loops that have no other one inside them.
std::optional<Loop> best_innermost(const std::vector<Loop>& loops) {
    std::optional<Loop> best;
    for (const Loop& loop : loops) {
        const bool has_inner = std::ranges::any_of(loops, [&](const Loop& other) {
            const bool is_smaller = other.last - other.first < loop.last - loop.first;
            return is_smaller && other.first >= loop.first && other.last <= loop.last;
        });
        if (!has_inner && (!best || loop.path.is_better_than(best->path))) best = loop;
    }
    return best;
}

// Returns the first block of a loop that has exponents.
std::optional<size_t> first_exponent(const std::vector<Block>& blocks, const Loop& loop) {
    const std::vector<bool> body = body_of(blocks, loop.first, loop.last);
    for (size_t b = 0; b < blocks.size(); b++)
        if (body[b] && std::ranges::any_of(blocks[b].lines, is_exponent)) return b;
    return {};
}

// Returns the loop with the fewest instructions for each product. One that loads nothing from memory comes last: it
// goes block by block through a tile that was loaded outside. Ways that enter another of the loops are not counted.
std::optional<Loop> steadiest(const std::vector<Block>& blocks, const std::vector<LoopCounts>& of_block,
                              const std::vector<Loop>& loops) {
    std::optional<Loop> best;
    const auto is_better = [&](const Path& path) {
        if (!best) return true;
        const bool loads = path.counts.global_loads != 0, best_loads = best->path.counts.global_loads != 0;
        if (loads != best_loads) return loads;
        return path.instructions_of_a_product() < best->path.instructions_of_a_product();
    };
    for (const Loop& loop : loops) {
        const std::vector<bool> body = body_of(blocks, loop.first, loop.last);
        std::vector<bool> avoided(blocks.size(), false);
        for (const Loop& other : loops)
            if (other.first != loop.first && body[other.first]) avoided[other.first] = true;
        auto path = best_path(blocks, of_block, loop.first, loop.last, avoided);
        if (path && path->counts.multiplications() != 0 && path->counts.transcendental != 0 &&
            is_better(*path))
            best = Loop{loop.first, loop.last, std::move(*path)};
    }
    return best;
}

}  // namespace

// RDNA: a SIMD issues a vector instruction of 32 lanes in one clock, and a quarter of the transcendental
// ones; two SIMDs share a compute unit and its LDS of 128 bytes a clock (AMD, "RDNA Architecture",
// whitepaper of 2019, and the ISA guides of RDNA2 to RDNA4). A product of 16x16x16 matrices, 8,192
// operations, takes 32 clocks by RDNA3's 512 operations of float16 a clock and compute unit (AMD GPUOpen,
// "How to accelerate AI applications on RDNA 3 using WMMA"), and 16 by RDNA4's 1,024 (AMD GPUOpen, "Using
// the Matrix Cores of AMD RDNA 4 architecture GPUs"). GCN: four SIMDs of 16
// lanes share an LDS of as many bytes and issue 64 lanes in four clocks (AMD, "Graphics Core Next",
// whitepaper of 2012).
constexpr UnitRates all_rates[] = {
    {"GFX12", 16, 1, 4, 2, 32},   {"NAVI3", 32, 1, 4, 2, 32}, {"PHOENIX", 32, 1, 4, 2, 32},
    {"STRIX", 32, 1, 4, 2, 32},   {"NAVI2", 0, 1, 4, 2, 32},  {"NAVI1", 0, 1, 4, 2, 32},
    {"VANGOGH", 0, 1, 4, 2, 32},  {"VEGA", 0, 4, 16, 4, 64},  {"RENOIR", 0, 4, 16, 4, 64},
    {"POLARIS", 0, 4, 16, 4, 64},
};

const UnitRates* rates_of(std::string_view device_name) {
    const auto* const found = std::ranges::find_if(
        all_rates, [&](const UnitRates& r) { return device_name.find(r.device) != device_name.npos; });
    return found != std::end(all_rates) ? found : nullptr;
}

LoopBound bound_of(const LoopCounts& counts, const UnitRates& rates) {
    const auto number = [](uint64_t n) { return static_cast<double>(n); };
    LoopBound bound;
    bound.matrix = number(counts.matrix) * rates.matrix;
    bound.vector = bound.matrix +
                   number(counts.fma + counts.dot - counts.paired + counts.vector + counts.transcendental) *
                       rates.vector;
    bound.transcendental = number(counts.transcendental) * rates.transcendental;
    bound.scalar = number(counts.scalar);
    constexpr double lds_bytes = 128;
    for (const auto* const accesses : {&counts.lds_loads, &counts.lds_stores})
        for (const auto& [bits, times] : *accesses)
            bound.lds += number(times) * rates.simds *
                         std::max(1.0, number(uint64_t{bits} / 8 * rates.lanes) / lds_bytes);
    return bound;
}

double LoopBound::most() const {
    return std::max({vector, transcendental, lds, scalar});
}

const char* LoopBound::unit() const {
    const double clocks = most();
    if (clocks == vector) return matrix * 2 >= vector ? "matrix" : "vector";
    return clocks == lds ? "lds" : clocks == transcendental ? "transcendental" : "scalar";
}

LoopCounts steady_loop(Assembly language, std::string_view text, const std::optional<LoopWork>& work) {
    const std::vector<Block> blocks = blocks_of(parse_assembly(language, text));
    std::vector<LoopCounts> of_block(blocks.size());
    for (size_t b = 0; b < blocks.size(); b++)
        for (const AssemblyLine& line : blocks[b].lines) count(language, line, of_block[b]);
    std::vector<Loop> loops;
    for (size_t last = 0; last < blocks.size(); last++)
        for (const size_t first : blocks[last].next)
            if (first <= last)
                if (auto path = best_path(blocks, of_block, first, last))
                    loops.push_back({first, last, std::move(*path)});
    std::erase_if(loops, [](const Loop& loop) { return loop.path.counts.multiplications() == 0; });
    std::vector<Loop> whole;  // those that have exponents, too
    std::ranges::copy_if(loops, std::back_inserter(whole),
                         [&](const Loop& loop) { return first_exponent(blocks, loop).has_value(); });
    auto found = steadiest(blocks, of_block, whole);
    if (!found) found = best_innermost(whole);  // NAK has code whose exponents no best way passes
    if (!found) found = best_innermost(loops);
    if (!found || !work) return found ? found->path.counts : LoopCounts{};
    const auto exponent = first_exponent(blocks, *found);
    if (!exponent) return found->path.counts;
    const BlockTimes times(blocks, loops, *found, *exponent, *work);
    std::vector<LoopCounts> of_all_times(blocks.size());
    LoopCounts behind;  // inner loops' blocks that stand behind the steady loop, where its path does not come
    for (size_t b = found->first; b < blocks.size(); b++)
        for (uint64_t t = 0; t < times.of(b) - (b > found->last ? 1 : 0); t++)
            add(of_block[b], b > found->last ? behind : of_all_times[b]);
    LoopCounts counts = best_path(blocks, of_all_times, found->first, found->last)->counts;
    add(behind, counts);
    const double wanted = work->qk.multiplications + work->pv.multiplications;
    const bool is_understood =
        std::abs(static_cast<double>(counts.multiplications()) - wanted) < 0.1 * wanted;
    return is_understood ? counts : found->path.counts;
}

}  // namespace vkattn::test
