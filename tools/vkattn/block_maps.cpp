#include "block_maps.hpp"

#include <charconv>
#include <random>

#include <fmt/format.h>

#include "common.hpp"

namespace vkattn::tools {
namespace {

// The number behind a word, as in random:0.9; 0 if the text is another word.
double number_behind(const std::string& text, const std::string& word, double most) {
    if (!text.starts_with(word + ":")) return 0;
    double number = 0;
    const char* const begin = text.data() + word.size() + 1;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(begin, end, number);
    if (error != std::errc() || rest != end || !(number > 0 && number <= most))
        throw UsageError("--block-map",
                         fmt::format("'{}': the number is not above 0 and up to {:g}", text, most));
    return number;
}

double share_of(const std::string& text) {
    return number_behind(text, "random", 1);
}
uint64_t documents_of(const std::string& text) {
    return static_cast<uint64_t>(number_behind(text, "causal-documents", 1e6));
}

}  // namespace

void ask_for_map(const std::string& text, VkattnProblem& p) {
    if (share_of(text) == 0 && documents_of(text) == 0 && text != "ones")
        throw UsageError("--block-map",
                         fmt::format("'{}' is not random:SHARE, causal-documents:N or ones", text));
    p.block_map = 1;
    if (share_of(text) != 0) p.block_map_heads = p.num_heads_q;
    if (documents_of(text) != 0) p.causal = 1;
}

std::vector<uint8_t> make_map(const std::string& text, const VkattnProblem& p) {
    const uint64_t down = vkattn_blocks(p.seqlen_q, p.block_rows),
                   across = vkattn_blocks(p.seqlen_kv, p.block_keys);
    std::vector<uint8_t> map(p.block_map_heads * down * across, 1);
    const double share = share_of(text);
    const uint64_t documents = documents_of(text);
    std::mt19937 random(1);
    std::uniform_real_distribution<double> chance;
    for (size_t i = 0; i < map.size(); i++) {
        const uint64_t row = i / across % down, key = i % across;
        if (share != 0) map[i] = chance(random) < share ? 0 : 1;
        if (documents != 0) map[i] = row * documents / down == key * documents / across ? 1 : 0;
    }
    return map;
}

}  // namespace vkattn::tools
