#include "array_fill.hpp"

#include <limits>
#include <random>

#include "storage.hpp"

namespace vkattn::test {

void fill_map(Case& c) {
    std::mt19937 random(c.seed + 1);
    for (const OptionalArray& array : optional_arrays)
        if (std::string_view(array.name) == "block_map") c.block_map.resize(array.count(c.problem));
    constexpr uint8_t kinds[] = {0, 0, 0, 0, 1, 1, 2, 200};
    for (uint8_t& block : c.block_map) block = kinds[random() % std::size(kinds)];
}

void fill_scales(Case& c, VkattnScales kind) {
    VkattnProblem& p = c.problem;
    std::mt19937 random(c.seed + 2);
    const auto fill = [&](VkattnDtype dtype, VkattnScales& scales, std::vector<float>& values) {
        if (!is_single_bytes(dtype)) return;
        scales = kind;
        values.resize(scales_of(p, kind));
        // Values of 3 become about 100, which int8 has room for, and e4m3 and e5m2, too.
        for (float& x : values) x = 0.03f * (1 + static_cast<float>(random() % 64) / 64);
        if (kind != VKATTN_SCALES_PER_ROW || c.kv_lengths.empty()) return;
        for (size_t i = 0; i < values.size(); i++)
            if (static_cast<int64_t>(i % p.seqlen_kv) >= c.kv_lengths[i / p.seqlen_kv / p.num_heads_kv])
                values[i] = std::numeric_limits<float>::quiet_NaN();
    };
    fill(p.key_dtype, p.key_scales, c.key_scales);
    fill(p.value_dtype, p.value_scales, c.value_scales);
}

}  // namespace vkattn::test
