#include "gate/loops.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace vkattn::test {
namespace {

using Kind = AssemblyLine::Kind;

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0)
        text.remove_prefix(1);
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
    return text;
}

std::string_view first_word(std::string_view text) {
    return text.substr(0, text.find_first_of(" \t,"));
}

std::string_view last_word(std::string_view text) {
    const size_t blank = text.find_last_of(" \t");
    return blank == text.npos ? text : text.substr(blank + 1);
}

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
    return std::ranges::any_of(prefixes, [&](std::string_view p) { return name.starts_with(p); });
}

// "BB12:" begins a block; "s_cbranch_scc0 BB8 ; bfa10230" branches. RDNA3's dual instructions are two on a
// line, with "::" between them: the second one is a line of its own here, which takes no time.
void add_aco(std::string_view line, std::vector<AssemblyLine>& lines) {
    line = trimmed(line.substr(0, line.find(';')));
    if (line.starts_with("BB") && line.ends_with(':'))
        return lines.push_back({Kind::label, std::string(line.substr(0, line.size() - 1)), "", 1});
    const std::string name(first_word(line));
    if (!starts_with_any(name, {"v_", "s_", "ds_", "global_", "buffer_", "flat_", "scratch_"})) return;
    const bool branches = name.starts_with("s_cbranch");
    const Kind kind = branches ? Kind::branch : name == "s_branch" ? Kind::jump : Kind::instruction;
    lines.push_back({kind, name, kind != Kind::instruction ? std::string(last_word(line)) : "", 1});
    if (const size_t second = line.find("::"); second != line.npos)
        lines.push_back(
            {Kind::instruction, std::string(first_word(trimmed(line.substr(second + 2)))), "", 0});
}

// Bits in a name such as ds_load_2addr_b64, ds_load_u16_d16_hi or ld.shared.b128; 32 where it has none.
uint32_t bits_in(std::string_view name) {
    uint32_t bits = 32;
    for (size_t i = 1; i + 1 < name.size(); i++)
        if ((name[i - 1] == '_' || name[i - 1] == '.') &&
            (name[i] == 'b' || name[i] == 'u' || name[i] == 'i')) {
            uint32_t number = 0;
            for (size_t d = i + 1; d < name.size() && std::isdigit(static_cast<unsigned char>(name[d])) != 0;
                 d++)
                number = number * 10 + static_cast<uint32_t>(name[d] - '0');
            if (number != 0) {
                bits = number;
                break;
            }
        }
    const bool two = name.find("_2addr") != name.npos || name.find("read2") != name.npos ||
                     name.find("write2") != name.npos;
    return two ? 2 * bits : bits;
}

// "ldl.u32 r4.x, l[r5.x], 4" moves four elements, and so does "stl.u32 l[r5.x], r4.x, 4": its name becomes "ldl.b128".
std::string with_all_bits(const std::string& name, std::string_view line) {
    const std::string_view last = last_word(line);
    uint32_t elements = 1;
    std::from_chars(last.data(), last.data() + last.size(), elements);
    return fmt::format("{}.b{}", name.substr(0, 3), bits_in(name) * std::max(elements, 1u));
}

// "l163:" begins a block; "(ss)br !p0.y, #l695" branches, "jump #l581" does not come back. Flags stand in parentheses
// before the name; "(rpt3)" repeats an instruction three times.
void add_ir3(std::string_view line, std::vector<AssemblyLine>& lines) {
    line = trimmed(line);
    if (line.empty() || line.front() == ';') return;
    if (line.front() == 'l' && line.ends_with(':'))
        return lines.push_back({Kind::label, std::string(line.substr(0, line.size() - 1)), "", 1});
    uint64_t times = 1;
    bool waits = false;
    while (line.starts_with('(')) {
        const size_t end = line.find(')');
        if (end == line.npos) return;
        const std::string_view flag = line.substr(1, end - 1);
        if (flag.starts_with("rpt")) times += static_cast<uint64_t>(flag.back() - '0');
        waits = waits || flag == "ss" || flag == "sy";
        line = trimmed(line.substr(end + 1));
    }
    const std::string name(first_word(line));
    if (name.empty() || std::isalpha(static_cast<unsigned char>(name.front())) == 0 || name.back() == ':')
        return;
    if (waits) lines.push_back({Kind::instruction, "(wait)", "", 1});
    if (starts_with_any(name, {"ldl", "stl"}))
        return lines.push_back({Kind::instruction, with_all_bits(name, line), "", 1});
    const size_t target = line.find("#l");
    if (target == line.npos) return lines.push_back({Kind::instruction, name, "", times});
    lines.push_back(
        {name == "jump" ? Kind::jump : Kind::branch, name, std::string(line.substr(target + 1)), 1});
}

// "block.u 3 L8 [2] -> {" begins a block; "@!p0 bra pT L9" branches, and "bra L9" without a predicate does
// not come back. Before Volta invocations part and meet by a stack: "sync L9", "brk L9" and "cont L9" branch, too, to
// what ssy, pbk and pcnt have put there. "r1 = shf.r ..." assigns; what writes a register named ur.. is of the scalar
// unit.
void add_nak(std::string_view line, std::vector<AssemblyLine>& lines) {
    line = trimmed(line.substr(0, line.find("//")));
    if (line.starts_with("block")) {
        const size_t label = line.find(" L");
        if (label == line.npos) return;
        return lines.push_back({Kind::label, std::string(first_word(line.substr(label + 1))), "", 1});
    }
    const bool predicated = line.starts_with('@');
    if (predicated) line = trimmed(line.substr(std::min(line.find(' '), line.size())));
    const size_t equals = line.find(" = ");
    const bool is_scalar = line.starts_with("ur") || line.starts_with("up");
    if (equals != line.npos) line = trimmed(line.substr(equals + 3));
    const std::string name(first_word(line));
    if (name.empty() || std::isalpha(static_cast<unsigned char>(name.front())) == 0) return;
    if (name == "bra" || name == "sync" || name == "brk" || name == "cont") {
        const bool conditional = predicated || line.find(" up") != line.npos || line.find(" !") != line.npos;
        return lines.push_back(
            {conditional ? Kind::branch : Kind::jump, name, std::string(last_word(line)), 1});
    }
    lines.push_back({Kind::instruction, is_scalar ? "scalar." + name : name, "", 1});
}

void count_aco(const AssemblyLine& line, LoopCounts& c) {
    std::string_view n = line.name;
    if (n.starts_with("ds_")) {
        const bool loads = starts_with_any(n, {"ds_load", "ds_read"});
        if (loads || starts_with_any(n, {"ds_store", "ds_write"}))
            (loads ? c.lds_loads : c.lds_stores)[bits_in(n)]++;
    } else if (starts_with_any(n, {"global_load", "buffer_load", "flat_load"})) {
        c.global_loads++;
    } else if (n.starts_with("s_wait")) {
        c.waits++;
    } else if (n.starts_with("s_barrier")) {
        c.barriers++;
    } else if (starts_with_any(n, {"s_delay", "s_clause", "s_nop"})) {
        return;  // hints
    } else if (n.starts_with("s_")) {
        c.scalar++;
    } else if (n.starts_with("v_")) {
        if (n.starts_with("v_dual_"))
            n.remove_prefix(7);
        else
            n.remove_prefix(2);
        const uint64_t multiplications = c.multiplications();
        if (starts_with_any(n, {"wmma", "swmmac", "mfma"}))
            c.matrix++;
        else if (n.starts_with("dot2"))
            c.dot++;
        else if (starts_with_any(n, {"fma", "mad_f", "mac_f", "mad_mix", "pk_fma"}))
            c.fma++;
        else if (starts_with_any(n, {"exp_", "log_", "rcp_", "rsq_", "sqrt_", "sin_", "cos_"}))
            c.transcendental++;
        else
            c.vector += line.times;
        if (line.times == 0) c.paired += c.multiplications() - multiplications;
    }
}

void count_ir3(const AssemblyLine& line, LoopCounts& c) {
    const std::string_view n = line.name;
    if (n == "(wait)")
        c.waits++;
    else if (n.starts_with("mad.f"))
        c.fma += line.times;
    else if (starts_with_any(n, {"dp2acc", "dp4acc"}))
        c.dot += line.times;
    else if (starts_with_any(n,
                             {"rcp", "rsq", "log2", "exp2", "sin", "cos", "sqrt", "hrsq", "hlog2", "hexp2"}))
        c.transcendental += line.times;
    else if (n.starts_with("ldl"))
        c.lds_loads[bits_in(n)] += line.times;
    else if (n.starts_with("stl"))
        c.lds_stores[bits_in(n)] += line.times;
    else if (starts_with_any(n, {"ldg", "ldib", "isam", "ldc"}))
        c.global_loads++;
    else if (n.starts_with("bar"))
        c.barriers++;
    else if (starts_with_any(n, {"nop", "br", "jump"}))
        return;
    else
        c.vector += line.times;
}

void count_nak(const AssemblyLine& line, LoopCounts& c) {
    const std::string_view n = line.name;
    if (n.starts_with("scalar."))
        c.scalar++;
    else if (starts_with_any(n, {"hmma", "imma"}))
        c.matrix++;
    else if (starts_with_any(n, {"ffma", "hfma2"}))
        c.fma++;
    else if (n.starts_with("mufu"))
        c.transcendental++;
    else if (n.starts_with("ldsm"))
        c.lds_loads[n.ends_with("x4") || n.find(".x4") != n.npos ? 128 : 32]++;
    else if (n.starts_with("ld.shared"))
        c.lds_loads[bits_in(n)]++;
    else if (n.starts_with("st.shared"))
        c.lds_stores[bits_in(n)]++;
    else if (n.starts_with("ld.global"))
        c.global_loads++;
    else if (n.starts_with("bar"))
        c.barriers++;
    else if (starts_with_any(n, {"bra", "nop", "bssy", "bsync", "ssy", "sync", "pbk", "brk", "pcnt", "cont"}))
        return;
    else
        c.vector++;
}

bool is_exponent(const AssemblyLine& line) {
    return line.name.find("exp2") != line.name.npos ||
           starts_with_any(line.name, {"v_exp_", "v_dual_exp_", "mufu.ex"});
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

// The best path from block `first` to `last`, which branches back to it. Blocks come in an order in which only loops
// branch backward.
std::optional<Path> best_path(const std::vector<Block>& blocks, const std::vector<LoopCounts>& of_block,
                              size_t first, size_t last) {
    std::vector<std::optional<Path>> best(last - first + 1);
    best[0] = Path{of_block[first]};
    for (size_t b = first; b <= last; b++) {
        if (!best[b - first]) continue;
        for (const size_t next : blocks[b].next) {
            if (next <= b || next > last) continue;
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

// How often blocks run in one pass of a loop: the loops inside it that multiply, as often as `work` asks for.
class BlockTimes {
  public:
    BlockTimes(const std::vector<Block>& blocks, const std::vector<Loop>& loops, const Loop& steady,
               size_t first_exponent, const LoopWork& work)
        : times_(blocks.size(), 1.0) {
        const std::vector<bool> in_steady = body_of(blocks, steady.first, steady.last);
        for (const Loop& loop : loops) {
            const double multiplications = static_cast<double>(loop.path.counts.multiplications());
            if (multiplications == 0 || loop.first == steady.first || !in_steady[loop.first]) continue;
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

// The best of the loops that `is_wanted` and that have no other such loop inside them.
template <class Wanted>
std::optional<Loop> best_innermost(const std::vector<Loop>& loops, const Wanted& is_wanted) {
    std::optional<Loop> best;
    for (const Loop& loop : loops) {
        const bool has_inner = std::ranges::any_of(loops, [&](const Loop& other) {
            const bool is_smaller = other.last - other.first < loop.last - loop.first;
            return is_smaller && other.first >= loop.first && other.last <= loop.last && is_wanted(other);
        });
        if (is_wanted(loop) && !has_inner && (!best || loop.path.is_better_than(best->path))) best = loop;
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

uint64_t LoopCounts::instructions() const {
    uint64_t sum =
        multiplications() - paired + transcendental + vector + scalar + global_loads + waits + barriers;
    for (const auto& [bits, times] : lds_loads) sum += times;
    for (const auto& [bits, times] : lds_stores) sum += times;
    return sum;
}

std::vector<AssemblyLine> parse_assembly(Assembly language, std::string_view text) {
    std::vector<AssemblyLine> lines;
    while (!text.empty()) {
        const size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        switch (language) {
            case Assembly::aco:
                add_aco(line, lines);
                break;
            case Assembly::ir3:
                add_ir3(line, lines);
                break;
            case Assembly::nak:
                add_nak(line, lines);
                break;
        }
    }
    return lines;
}

void count(Assembly language, const AssemblyLine& line, LoopCounts& counts) {
    switch (language) {
        case Assembly::aco:
            return count_aco(line, counts);
        case Assembly::ir3:
            return count_ir3(line, counts);
        case Assembly::nak:
            return count_nak(line, counts);
    }
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
    const auto multiplies = [](const Loop& loop) { return loop.path.counts.multiplications() > 0; };
    std::vector<size_t> exponents;  // blocks that have some
    for (size_t b = 0; b < blocks.size(); b++)
        if (std::ranges::any_of(blocks[b].lines, is_exponent)) exponents.push_back(b);
    const auto first_exponent = [&](const Loop& loop) {
        return std::ranges::lower_bound(exponents, loop.first);
    };
    const auto exponentiates = [&](const Loop& loop) {
        const auto at = first_exponent(loop);
        return multiplies(loop) && at != exponents.end() && *at <= loop.last;
    };
    auto found = best_innermost(loops, exponentiates);
    if (!found) found = best_innermost(loops, multiplies);
    if (!found || !work) return found ? found->path.counts : LoopCounts{};
    if (!exponentiates(*found)) return found->path.counts;
    const BlockTimes times(blocks, loops, *found, *first_exponent(*found), *work);
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
