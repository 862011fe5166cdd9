#include "gate/assembly.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

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

// "  7fe: 69910802f400003c       lload    r100_r101_r102_r103, r100l, 0, i32, xyzw" is an instruction at address 0x7fe.
struct AgxInstruction {
    uint64_t address = 0;
    std::string_view name, operands;

    bool jumps() const { return name.starts_with("jmp_"); }
    std::string target() const {  // operands: bytes from the jump itself
        int64_t offset = 0;
        std::from_chars(operands.data(), operands.data() + operands.size(), offset);
        return fmt::format("{:x}", address + static_cast<uint64_t>(offset));
    }
};

bool read_agx(std::string_view line, AgxInstruction& in) {
    line = trimmed(line);
    const char* const end = line.data() + line.size();
    const auto [colon, error] = std::from_chars(line.data(), end, in.address, 16);
    if (error != std::errc{} || colon == end || *colon != ':') return false;
    line = trimmed(line.substr(static_cast<size_t>(colon - line.data()) + 1));
    const size_t bytes = line.find_first_not_of("0123456789abcdef");
    if (bytes == 0 || bytes == line.npos || line[bytes] != ' ') return false;
    line = trimmed(line.substr(bytes));
    in.name = first_word(line);
    in.operands = trimmed(line.substr(in.name.size()));
    return !in.name.empty();
}

// Returns the longest of the programs in a text, each of which ends with "stop": a shorter one fills uniform registers
// ahead of it.
std::vector<AgxInstruction> agx_program(std::string_view text) {
    std::vector<AgxInstruction> longest, program;
    while (!text.empty()) {
        const size_t end = std::min(text.find('\n'), text.size());
        AgxInstruction in;
        if (read_agx(text.substr(0, end), in)) program.push_back(in);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (in.name != "stop" && !text.empty()) continue;
        if (program.size() > longest.size()) longest = program;
        program.clear();
    }
    return longest;
}

// "lload r0_r1, r9l, 0, i32, xy, a" moves two elements of 32 bits: its name becomes "lload.b64".
std::string with_agx_bits(const AgxInstruction& in) {
    uint32_t bits = 32, elements = 1;
    for (std::string_view rest = in.operands; !rest.empty();) {
        const size_t comma = std::min(rest.find(','), rest.size());
        const std::string_view word = trimmed(rest.substr(0, comma));
        rest.remove_prefix(std::min(comma + 1, rest.size()));
        if (word == "i8" || word == "i16" || word == "i32")
            std::from_chars(word.data() + 1, word.data() + word.size(), bits);
        else if (word.find_first_not_of("xyzw") == word.npos)
            elements = static_cast<uint32_t>(word.size());
    }
    return fmt::format("{}.b{}", in.name, bits * elements);
}

// Masks of invocations stand for branches: "if" hides what follows from some, "else" from the others, and "pop_exec 1"
// ends that. "jmp_none 2916" goes past what no invocation would execute, and "jmp_any -5502" ends a loop. Where both
// sides of an "if" begin with such a jump, a subgroup whose invocations agree executes one side only: then this puts a
// jump before "else", for whoever comes from the first side.
std::vector<AssemblyLine> parse_agx(std::string_view text) {
    const std::vector<AgxInstruction> program = agx_program(text);
    std::set<std::string> targets;
    for (const AgxInstruction& in : program)
        if (in.jumps()) targets.insert(in.target());
    std::vector<AssemblyLine> lines;
    std::vector<bool> open;  // for each "if": whether a jump goes past its first side
    for (size_t i = 0; i < program.size(); i++) {
        const AgxInstruction& in = program[i];
        const bool jumps_next = i + 1 < program.size() && program[i + 1].name == "jmp_none";
        const bool parts = in.name == "else" && jumps_next && !open.empty() && open.back();
        if (parts) lines.push_back({Kind::jump, "jmp_none", program[++i].target(), 1});
        const std::string address = fmt::format("{:x}", in.address);
        if (targets.contains(address)) lines.push_back({Kind::label, address, "", 1});
        if (in.name == "if") open.push_back(jumps_next);
        if (in.name == "pop_exec" && !open.empty()) open.pop_back();
        if (in.jumps())
            lines.push_back({Kind::branch, std::string(in.name), in.target(), 1});
        else
            lines.push_back(
                {Kind::instruction,
                 in.name == "lload" || in.name == "lstore" ? with_agx_bits(in) : std::string(in.name), "",
                 1});
    }
    return lines;
}

using C = LoopCounts;

// An instruction counts by the first rule of its language that has a prefix of its name.
struct Rule {
    uint64_t C::*at;  // null for what only moves on: hints, branches, labels of branches
    std::vector<std::string_view> prefixes;
};

// Without "v_dual_", which is "v_" here.
const std::vector<Rule> aco_rules{
    {&C::global_loads, {"global_load", "buffer_load", "flat_load"}},
    {&C::waits, {"s_wait"}},
    {&C::barriers, {"s_barrier"}},
    {nullptr, {"s_delay", "s_clause", "s_nop"}},
    {&C::scalar, {"s_"}},
    {&C::matrix, {"v_wmma", "v_swmmac", "v_mfma"}},
    {&C::dot, {"v_dot2"}},
    {&C::fma, {"v_fma", "v_mad_f", "v_mac_f", "v_mad_mix", "v_pk_fma"}},
    {&C::transcendental, {"v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_"}},
    {&C::vector, {"v_"}},
};
const std::vector<Rule> ir3_rules{
    {&C::waits, {"(wait)"}},
    {&C::fma, {"mad.f"}},
    {&C::dot, {"dp2acc", "dp4acc"}},
    {&C::transcendental, {"rcp", "rsq", "log2", "exp2", "sin", "cos", "sqrt", "hrsq", "hlog2", "hexp2"}},
    {&C::global_loads, {"ldg", "ldib", "isam", "ldc"}},
    {&C::barriers, {"bar"}},
    {nullptr, {"nop", "br", "jump"}},
    {&C::vector, {""}},
};
const std::vector<Rule> nak_rules{
    {&C::scalar, {"scalar."}},
    {&C::matrix, {"hmma", "imma"}},
    {&C::fma, {"ffma", "hfma2"}},
    {&C::transcendental, {"mufu"}},
    {&C::global_loads, {"ld.global"}},
    {&C::barriers, {"bar"}},
    {nullptr, {"bra", "nop", "bssy", "bsync", "ssy", "sync", "pbk", "brk", "pcnt", "cont"}},
    {&C::vector, {""}},
};
const std::vector<Rule> agx_rules{
    {&C::fma, {"ffma", "hfma"}},  {&C::transcendental, {"exp2", "log2", "rcp", "rsqrt", "sin", "cos"}},
    {&C::global_loads, {"load"}}, {&C::waits, {"wait"}},
    {&C::barriers, {"barrier"}},  {nullptr, {"jmp_"}},
    {&C::vector, {""}},  // masks, too: there is no scalar unit
};

const std::vector<Rule>& rules_of(Assembly language) {
    return language == Assembly::aco   ? aco_rules
           : language == Assembly::ir3 ? ir3_rules
           : language == Assembly::nak ? nak_rules
                                       : agx_rules;
}

// Loads and stores of shared memory are counted by their bits.
bool count_lds(std::string_view name, uint64_t times, C& c) {
    if (name.starts_with("ldsm"))
        c.lds_loads[name.find(".x4") != name.npos || name.ends_with("x4") ? 128 : 32] += times;
    else if (starts_with_any(name, {"ds_load", "ds_read", "ldl", "ld.shared", "lload"}))
        c.lds_loads[bits_in(name)] += times;
    else if (starts_with_any(name, {"ds_store", "ds_write", "stl", "st.shared", "lstore"}))
        c.lds_stores[bits_in(name)] += times;
    else
        return name.starts_with("ds_");
    return true;
}

}  // namespace

uint64_t LoopCounts::instructions() const {
    uint64_t sum =
        multiplications() - paired + transcendental + vector + scalar + global_loads + waits + barriers;
    for (const auto& [bits, times] : lds_loads) sum += times;
    for (const auto& [bits, times] : lds_stores) sum += times;
    return sum;
}

std::vector<AssemblyLine> parse_assembly(Assembly language, std::string_view text) {
    if (language == Assembly::agx) return parse_agx(text);
    std::vector<AssemblyLine> lines;
    while (!text.empty()) {
        const size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        (language == Assembly::aco ? add_aco : language == Assembly::ir3 ? add_ir3 : add_nak)(line, lines);
    }
    return lines;
}

void count(Assembly language, const AssemblyLine& line, LoopCounts& counts) {
    if (count_lds(line.name, line.times, counts)) return;
    const std::string name = line.name.starts_with("v_dual_") ? "v_" + line.name.substr(7) : line.name;
    for (const Rule& rule : rules_of(language)) {
        if (std::ranges::none_of(rule.prefixes, [&](std::string_view p) { return name.starts_with(p); }))
            continue;
        if (rule.at == nullptr) return;
        // The second half of a dual instruction is issued with the first one; a move among them takes no time.
        counts.*rule.at += rule.at == &C::vector ? line.times : std::max<uint64_t>(line.times, 1);
        const bool multiplies = rule.at == &C::fma || rule.at == &C::dot || rule.at == &C::matrix;
        if (line.times == 0 && multiplies) counts.paired++;
        return;
    }
}

}  // namespace vkattn::test
