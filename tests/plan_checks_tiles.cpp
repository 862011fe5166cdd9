// Numbers of a tuning that lib/tiles.glsl can work with, and the shared memory of the portable kernels by the maps of
// their pools, written from shaders/lib.
#include <algorithm>
#include <map>
#include <stdexcept>

#include <fmt/format.h>

#include "plan_checks.hpp"
#include "plan_reading.hpp"

namespace vkattn::test {
namespace {

using core::TileNumbers;

struct Number {
    const char* name;
    uint32_t TileNumbers::*at;
};

constexpr Number all_numbers[] = {
    {"threads", &TileNumbers::threads},   {"lanes", &TileNumbers::lanes},
    {"rows", &TileNumbers::rows},         {"cols", &TileNumbers::cols},
    {"chunk", &TileNumbers::chunk},       {"p_blocks", &TileNumbers::p_blocks},
    {"v_keys", &TileNumbers::v_keys},     {"prefetch", &TileNumbers::prefetch},
    {"unroll", &TileNumbers::unroll},     {"rolled", &TileNumbers::rolled},
    {"q_slices", &TileNumbers::q_slices}, {"kv_slices", &TileNumbers::kv_slices},
};
static_assert(sizeof(TileNumbers) == sizeof(uint32_t) * std::size(all_numbers), "a number is missing above");

std::string rows_kernel_flaw(const TileNumbers& n) {
    if (n.threads == 0 || n.lanes == 0 || n.rows == 0 || n.unroll == 0) return "a number is 0";
    if (n.chunk != 0 || n.p_blocks != 0 || n.v_keys != 0) return "a number it does not have";
    if (n.prefetch + n.rolled > 1) return "prefetched in rolled loops";
    if (n.threads % n.lanes != 0) return "a group of lanes is not whole";
    if (n.rows % 4 != 0) return "not a multiple of 4";
    if (n.lanes % n.unroll != 0) return "loops do not unroll evenly";
    if (n.rolled > 1) return "rolled is not a boolean";
    if (n.tile_q() != n.rows || n.tile_kv() != n.threads) return "tiles";
    return "";
}

// backward_key_value.comp: other groups of invocations for the sums over query rows.
std::string sums_flaw(const TileNumbers& n, uint32_t line) {
    if (n.kv_slices > 1 && n.kv_slices % 2 != 0) return "dkey and dvalue have different numbers of slices";
    if (n.tile_kv() % n.rows != 0) return "keys do not divide into groups of rows";
    if (n.threads % (n.tile_kv() / n.rows) != 0) return "a group of key lanes is not whole";
    if (n.rows % (line * n.p_blocks) != 0) return "rows do not divide into blocks of P";
    if (line * (n.threads / n.lanes) * n.p_blocks % n.v_keys != 0)
        return "slots do not divide into stages of rows";
    return "";
}

}  // namespace

std::string numbers_flaw(const TileNumbers& n, bool backward, bool dot) {
    if (n.of_rows_kernel() && dot && n.unroll % 2 != 0) return "half a pair of keys";
    if (n.of_rows_kernel()) return backward ? "numbers of the kernel for few rows" : rows_kernel_flaw(n);
    for (const Number& number : all_numbers)
        if (number.at != &TileNumbers::prefetch && number.at != &TileNumbers::rolled && n.*number.at == 0)
            return std::string(number.name) + " is 0";
    if (n.threads % n.lanes != 0) return "a group of lanes is not whole";
    if (n.rows % 4 != 0 || n.cols % 4 != 0 || n.chunk % 4 != 0 || (n.v_keys % 4 != 0 && !backward))
        return "not a multiple of 4";
    if (n.cols % (4 * n.p_blocks) != 0) return "P does not divide into its blocks";
    if (4 * n.p_blocks * n.lanes % n.v_keys != 0) return "a block of P does not divide into stages of V";
    const uint32_t line = dot ? 2 : 1;
    if (n.v_keys % line != 0) return "half a pair of keys";
    for (const uint32_t steps :
         {n.chunk / line, n.v_keys / line})  // a loop shorter than unroll is unrolled whole
        if (n.unroll < steps && steps % n.unroll != 0) return "loops do not unroll evenly";
    if (n.prefetch > 1 || n.rolled > 1) return "not a boolean";
    if ((n.q_slices != 1 || n.kv_slices != 1) && !backward) return "slices of a forward";
    if (n.prefetch + n.rolled > 1) return "the module for CPUs does not prefetch";
    if (n.tile_q() != n.threads / n.lanes * n.rows || n.tile_kv() != n.lanes * n.cols) return "tiles";
    return backward ? sums_flaw(n, line) : "";
}

uint32_t pool_of_maps(const TileNumbers& n, uint32_t head_dim_v, bool dot) {
    uint32_t v_vecs = 0;  // lanes take turns, so a row of V is a whole number of vec4 for each
    while (v_vecs * 4 < head_dim_v) v_vecs += n.lanes;
    if (n.of_rows_kernel()) {
        const uint32_t keys = n.threads, row_vecs = n.rows / 4;
        const uint32_t parts = keys * (n.lanes + 1) * row_vecs, scores = keys * row_vecs, p = keys * row_vecs;
        return std::max(parts + scores + p, n.threads / n.lanes * v_vecs);
    }
    const auto odd = [](uint32_t x) { return x | 1; };
    const uint32_t q_vecs = n.threads / n.lanes * n.rows / 4, k_vecs = n.lanes * n.cols / 4;
    const uint32_t p_keys = 4 * n.p_blocks * n.lanes;
    const uint32_t line = dot ? 2 : 1;  // elements side by side
    const uint32_t scores = (n.chunk * odd(q_vecs) + n.chunk * odd(k_vecs)) / line;
    const uint32_t output = (p_keys * odd(q_vecs) + n.v_keys * v_vecs) / line;
    const uint32_t maxima = n.threads * (n.rows / 4);
    const uint32_t softmax_rows = n.threads;  // materialized_softmax: one entry an invocation
    return std::max({scores, output, maxima, softmax_rows});
}

TileNumbers parse_numbers(const std::string& text) {
    std::map<std::string, uint32_t> values = values_in(text);
    const bool rows_kernel = values.count("cols") == 0;  // it has six of them
    if (!rows_kernel)
        for (const char* name : {"q_slices", "kv_slices"}) values.try_emplace(name, 1);
    if (values.size() != (rows_kernel ? 6 : std::size(all_numbers)))
        throw std::runtime_error("not all numbers: " + text);
    TileNumbers numbers{};
    numbers.q_slices = numbers.kv_slices = 1;
    for (const Number& number : all_numbers)
        if (!rows_kernel || values.count(number.name) != 0) numbers.*number.at = values.at(number.name);
    return numbers;
}

uint32_t pool_of_backward_maps(const TileNumbers& n, uint32_t head_dim_qk, uint32_t head_dim_v, bool dot) {
    const auto odd = [](uint32_t x) { return x | 1; };
    const auto row = [](uint32_t head_dim, uint32_t lanes, uint32_t slices) {  // of a slice
        return static_cast<uint32_t>(round_up(head_dim, 4 * lanes * slices)) / 4 / slices;
    };
    const uint32_t q_vecs = odd(n.tile_q() / 4), k_vecs = odd(n.tile_kv() / 4);
    const uint32_t line = dot ? 2 : 1;  // elements side by side
    const uint32_t scores = n.chunk / line * (q_vecs + k_vecs);
    const uint32_t sums_of_rows = n.threads * (n.rows / 4), sums_of_columns = n.threads * (n.cols / 4);
    // backward_query: dS, then keys.
    const uint32_t query =
        (4 * n.p_blocks * n.lanes * q_vecs + n.v_keys * row(head_dim_qk, n.lanes, n.q_slices)) / line;
    // backward_key_value: P and dS of some rows, or pairs of rows, of every group, then dout and query.
    const uint32_t slots = n.threads / n.lanes * n.p_blocks, lanes = n.threads / (n.tile_kv() / n.rows);
    const uint32_t key_value =
        2 * slots * k_vecs + n.v_keys / line *
                                 (n.kv_slices == 1
                                      ? row(head_dim_v, lanes, 1) + row(head_dim_qk, lanes, 1)
                                      : row(std::max(head_dim_v, head_dim_qk), lanes, n.kv_slices / 2));
    const uint32_t sums_of_dlse = n.threads;
    // Statistics of the tile's rows stand behind them all.
    return std::max({scores, sums_of_rows, sums_of_columns, query, key_value, sums_of_dlse}) + n.tile_q();
}

}  // namespace vkattn::test
