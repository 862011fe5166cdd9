#include "nonfinite.hpp"

#include <algorithm>

namespace vkattn::test {

// With a value of 1 at one head dim of each key, the output is the weights. Queries of 0 leave what the mask adds,
// which no weight vanishes by.
Visibility::Visibility(const Case& c, const Inputs& inputs) {
    oracle::Problem p = oracle_problem(c, inputs);
    rows_of_head_ = p.seqlen_q;
    rows_ = p.batch * p.num_heads_q * p.seqlen_q;
    keys_ = p.seqlen_kv;
    group_ = p.num_heads_q / p.num_heads_kv;
    p.head_dim_qk = 1;
    p.head_dim_v = keys_;
    const std::vector<double> query(rows_, 0), key(p.batch * p.num_heads_kv * keys_, 0);
    std::vector<double> value(key.size() * keys_, 0);
    for (size_t j = 0; j < key.size(); j++) value[j * keys_ + j % keys_] = 1;
    weights_ = oracle::forward(p, query, key, value).out;
}

bool Visibility::is_empty(size_t row) const {
    const auto weights = std::span(weights_).subspan(row * keys_, keys_);
    return std::ranges::all_of(weights, [](double x) { return x == 0; });
}

}  // namespace vkattn::test
