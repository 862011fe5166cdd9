#include "gate/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace vkattn::test {
namespace {

// A driver's words. Mesa 26.1: RADV, Turnip, NVK, Honeykrisp.
struct Words {
    const char* registers;
    std::vector<const char*> spills;
    const char* stack;
    const char* shared;
    const char* occupancy;
};

const Words all_words[] = {
    {"VGPRs", {"Spilled SGPRs", "Spilled VGPRs"}, "Scratch size", "LDS size", "Subgroups per SIMD"},
    {"Registers used", {"STP Count"}, nullptr, nullptr, "Max Waves Per Core"},
    {"Number of GPRs", {"Spills to memory"}, "SLM size", nullptr, "Max warps/SM"},
    {"GPRs", {"Spills"}, "Scratch", nullptr, "Threads"},
};

struct Column {
    const char* name;
    uint64_t Usage::*at;
};

constexpr Column columns[] = {{"registers", &Usage::registers}, {"spills", &Usage::spills},
                              {"stack", &Usage::stack_bytes},   {"shared", &Usage::shared_bytes},
                              {"occupancy", &Usage::occupancy}, {"ms", &Usage::ms}};
constexpr std::string_view gap =
    "  ";  // between a pipeline's name and its numbers; the name has single blanks only

std::string worse(const Usage& kept, const Usage& now) {
    if (now.result != 0) return kept.result == 0 ? fmt::format("fails with VkResult {}", now.result) : "";
    if (kept.result != 0) return "";
    if (now.spills > kept.spills) return fmt::format("spills {}, kept {}", now.spills, kept.spills);
    if (now.stack_bytes != 0 && kept.stack_bytes == 0)
        return fmt::format("keeps {} bytes on a stack, kept none", now.stack_bytes);
    if (now.occupancy < kept.occupancy)
        return fmt::format("occupancy {}, kept {}", now.occupancy, kept.occupancy);
    return "";
}

std::pair<std::string, Usage> parse_line(const std::string& line) {
    const size_t end = line.find(gap);
    if (end == line.npos) throw std::runtime_error("no pipeline and its numbers: " + line);
    Usage usage;
    std::istringstream numbers(line.substr(end));
    if (line.find(" failed ") != line.npos) {
        std::string word;
        if (!(numbers >> word >> usage.result)) throw std::runtime_error("no VkResult: " + line);
        return {line.substr(0, end), usage};
    }
    for (const Column& column : columns)
        if (!(numbers >> usage.*column.at))
            throw std::runtime_error(fmt::format("no number for {}: {}", column.name, line));
    return {line.substr(0, end), usage};
}

std::string unknown(const std::map<std::string, uint64_t>& statistics) {
    std::string text = "the driver's statistics are not known to tests/gate:";
    for (const auto& [name, number] : statistics) text += fmt::format(" {} {};", name, number);
    return text;
}

}  // namespace

Usage usage_of(const std::map<std::string, uint64_t>& statistics, uint64_t declared_shared_bytes) {
    const auto number = [&](const char* name) {
        const auto found = statistics.find(name);
        if (found == statistics.end())
            throw std::runtime_error(fmt::format("the driver does not report '{}'", name));
        return found->second;
    };
    const auto words = std::find_if(std::begin(all_words), std::end(all_words),
                                    [&](const Words& w) { return statistics.contains(w.occupancy); });
    if (words == std::end(all_words)) throw std::runtime_error(unknown(statistics));
    Usage usage;
    usage.registers = number(words->registers);
    for (const char* name : words->spills) usage.spills += number(name);
    usage.stack_bytes = words->stack != nullptr ? number(words->stack) : 0;
    usage.shared_bytes = words->shared != nullptr ? number(words->shared) : declared_shared_bytes;
    usage.occupancy = number(words->occupancy);
    return usage;
}

std::string to_text(const Table& table) {
    size_t width = 8;
    for (const auto& [name, usage] : table.pipelines) width = std::max(width, name.size());
    std::string text = fmt::format("# {}\n{:{}}{}", table.driver, "# pipeline", width, gap);
    for (const Column& column : columns) text += fmt::format("{:>10}", column.name);
    for (const auto& [name, usage] : table.pipelines) {
        text += fmt::format("\n{:{}}{}", name, width, gap);
        if (usage.result != 0)
            text += fmt::format("failed {}", usage.result);
        else
            for (const Column& column : columns) text += fmt::format("{:>10}", usage.*column.at);
    }
    return text + "\n";
}

Table parse_table(std::string_view text) {
    std::istringstream lines{std::string(text)};
    Table table;
    std::string line;
    if (!std::getline(lines, line) || !line.starts_with("# "))
        throw std::runtime_error("the first line names no driver");
    table.driver = line.substr(2);
    while (std::getline(lines, line)) {
        if (line.empty() || line.starts_with('#')) continue;
        if (!table.pipelines.insert(parse_line(line)).second) throw std::runtime_error("twice: " + line);
    }
    return table;
}

std::vector<std::string> regressions(const Table& kept, const Table& now) {
    std::vector<std::string> all;
    for (const auto& [name, usage] : now.pipelines) {
        const auto before = kept.pipelines.find(name);
        if (before == kept.pipelines.end())
            all.push_back(name + ": is not in the kept table");
        else if (const std::string why = worse(before->second, usage); !why.empty())
            all.push_back(name + ": " + why);
    }
    for (const auto& [name, usage] : kept.pipelines)
        if (!now.pipelines.contains(name)) all.push_back(name + ": is in the kept table only");
    return all;
}

}  // namespace vkattn::test
