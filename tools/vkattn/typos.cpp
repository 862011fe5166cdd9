#include "typos.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace vkattn::tools {
namespace {

constexpr size_t most_suggestions = 3;

std::string plain(std::string_view name) {
    name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
    std::string text;
    for (char c : name) text += c == '_' ? '-' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return text;
}

// The number of characters to insert, to remove, to replace, or to swap with their neighbour.
size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> before_last, last, row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); i++) {
        before_last = std::exchange(last, row);
        row[0] = i;
        for (size_t j = 1; j <= b.size(); j++) {
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before_last[j - 2] + 1);
        }
    }
    return row.back();
}

// The nearest names, as long as no more than a third of the word is wrong.
std::vector<std::string> nearest(const std::string& word, const std::vector<std::string>& names) {
    size_t least = std::max<size_t>(1, word.size() / 3);
    std::vector<std::string> found;
    for (const std::string& name : names) {
        const size_t distance = edit_distance(word, plain(name));
        if (distance > least) continue;
        if (distance < least) found.clear();
        least = distance;
        found.push_back(name);
    }
    return found;
}

std::vector<std::string> beginning_with(const std::string& word, const std::vector<std::string>& names) {
    std::vector<std::string> found;
    for (const std::string& name : names)
        if (plain(name).starts_with(word)) found.push_back(name);
    return found;
}

}  // namespace

std::string did_you_mean(std::string_view typed, const std::vector<std::string>& names) {
    const std::string word = plain(typed);
    if (word.empty()) return {};
    // A word that was cut off comes first: --head would be one letter from a name that has nothing to do with it.
    for (const auto& found : {beginning_with(word, names), nearest(word, names)})
        if (!found.empty() && found.size() <= most_suggestions)
            return fmt::format("; did you mean {}?", fmt::join(found, " or "));
    return {};
}

}  // namespace vkattn::tools
