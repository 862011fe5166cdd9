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

void count_agx(const AssemblyLine& line, LoopCounts& c) {
    const std::string_view n = line.name;
    if (starts_with_any(n, {"ffma", "hfma"}))
        c.fma++;
    else if (starts_with_any(n, {"exp2", "log2", "rcp", "rsqrt", "sin", "cos"}))
        c.transcendental++;
    else if (n.starts_with("lload"))
        c.lds_loads[bits_in(n)]++;
    else if (n.starts_with("lstore"))
        c.lds_stores[bits_in(n)]++;
    else if (n == "load")
        c.global_loads++;
    else if (n == "wait")
        c.waits++;
    else if (n == "barrier")
        c.barriers++;
    else if (!n.starts_with("jmp_"))
        c.vector++;  // masks, too: there is no scalar unit
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
            case Assembly::agx:  // above
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
        case Assembly::agx:
            return count_agx(line, counts);
    }
}

}  // namespace vkattn::test
