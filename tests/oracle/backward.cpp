#include "backward.hpp"

#include <algorithm>
#include <cstddef>

#include "internal.hpp"

namespace oracle {
namespace {

using namespace internal;

template <typename T>
struct Tensors {
    std::span<const T> query, key, value, dout, dlse;
};

// What one query head adds to gradients that others share. Added up in the order of the heads, so that the
// result does not depend on the threads.
template <typename T>
struct Share {
    std::vector<T> key, value;
    std::vector<T> mask;  // of the mask's plane that this head reads
    T sink = 0;
};

// Some rows of a query head, their part of each tensor, and the head's keys.
template <typename T>
struct Rows {
    Head head;
    std::size_t first;
    std::size_t last;
    std::span<const T> query, dout, dlse;
    const T* key;
    const T* value;
    const T* key_transposed;
    const T* value_transposed;
};

bool mask_has_gradient(const Problem& p) {
    return p.mask && p.mask->additive;
}

// The mask's elements that a head reads: mask_plane_size of them, from mask_plane on.
std::size_t mask_plane(const Problem& p, const Head& head) {
    return mask_row(p, head.batch, head.head, 0) * p.mask->extents.back();
}
std::size_t mask_plane_size(const Mask& mask) {
    const std::size_t rank = mask.extents.size();
    return (rank > 1 ? mask.extents[rank - 2] : 1) * mask.extents.back();
}

// sums (block.row_length x width) += transposed block * rows (block.rows x width)
template <typename T>
void add_weighted_rows(const Block<T>& block, const T* rows, std::size_t width, T* sums) {
    for (std::size_t j = block.keys.begin; j < block.keys.end; ++j) {
        Accumulator<T> sum(sums + j * width, width);
        for (std::size_t r = 0; r < block.rows; ++r)
            if (const T weight = block.row(r)[j]; weight != 0) sum.add(weight, rows + r * width);
    }
}

// rowsum(dout * out), out rounded as it is stored. The sum begins at the last head dim, that of dP at the first: a row
// that sees one key has dP = delta, and a yardstick whose roundings are the same in both would allow no error there.
// FlashAttention computes them in two programs.
template <typename T, typename Round>
std::vector<T> deltas(const Problem& p, const Rows<T>& rows, const Block<T>& rounded, Round round) {
    std::vector<T> out(rounded.rows * p.head_dim_v);
    add_weighted(rounded, rows.value, p.head_dim_v, out.data());
    std::vector<T> result(rounded.rows);
    for (std::size_t n = out.size(); n-- > 0;) result[n / p.head_dim_v] += rows.dout[n] * round(out[n]);
    return result;
}

// Of the final scores. Keys of probability 0 are hidden or as good as that: what stands there may be NaN.
template <typename T>
Block<T> score_gradients(const Problem& p, const Rows<T>& rows, const Block<T>& probabilities,
                         const std::vector<T>& delta) {
    Block<T> result(probabilities.rows, probabilities.row_length, probabilities.keys);
    multiply(rows.dout.data(), rows.value_transposed, p.head_dim_v, result);
    for (std::size_t r = 0; r < result.rows; ++r) {
        const T added = (rows.dlse.empty() ? 0 : rows.dlse[r]) - delta[r];
        for (std::size_t j = result.keys.begin; j < result.keys.end; ++j) {
            const T probability = probabilities.row(r)[j];
            T& gradient = result.row(r)[j];
            gradient = probability == 0 ? 0 : probability * (gradient + added);
        }
    }
    return result;
}

template <typename T>
void add_mask_gradients(const Problem& p, const Rows<T>& rows, const Block<T>& gradients,
                        std::vector<T>& plane) {
    const std::size_t columns = p.mask->extents.back();
    const T slope = p.slopes_of_mask ? static_cast<T>(slope_of(p, rows.head)) : 1;
    const std::size_t end = columns == 1 ? gradients.keys.end : std::min(gradients.keys.end, columns);
    for (std::size_t r = 0; r < gradients.rows; ++r) {
        const std::size_t row = mask_row(p, rows.head.batch, rows.head.head, rows.first + r) -
                                mask_row(p, rows.head.batch, rows.head.head, 0);
        for (std::size_t j = gradients.keys.begin; j < end; ++j)
            if (block_of_score(p, rows.head, rows.first + r, j) != 1)
                plane[row * columns + (columns == 1 ? 0 : j)] += slope * gradients.row(r)[j];
    }
}

// From the final scores to scale * (q.k), rounded.
template <typename T, typename Round>
void lead_through_softcap(const Block<T>& slopes, Block<T>& gradients, Round round) {
    for (std::size_t n = 0; n < gradients.values.size(); ++n) {
        T& gradient = gradients.values[n];
        if (gradient != 0 && slopes.rows != 0) gradient *= slopes.values[n];
        gradient = round(gradient);
    }
}

// These bring numbers to the types that they are stored in.
template <typename Store>
struct Stores {
    Store out, query, key, value, mask;
};
template <typename Store>
Stores(Store, Store, Store, Store, Store) -> Stores<Store>;

// `round` is for operands of products, `store` for what is stored.
template <typename T, typename Round, typename Store>
void add_rows(const Problem& p, const Rows<T>& rows, T* query_gradients, Share<T>& share, Round round,
              Store store) {
    const Attended<T> attended =
        attend(p, rows.head, rows.first, rows.last, rows.query.data(), rows.key_transposed);
    Block<T> rounded = attended.probabilities;
    for (T& x : rounded.values) x = round(x);
    add_weighted_rows(rounded, rows.dout.data(), p.head_dim_v, share.value.data());

    const std::vector<T> delta = deltas(p, rows, rounded, store.out);
    Block<T> gradients = score_gradients(p, rows, attended.probabilities, delta);
    if (mask_has_gradient(p)) add_mask_gradients(p, rows, gradients, share.mask);
    for (std::size_t r = 0; r < delta.size(); ++r)  // a score whose value is 0
        share.sink += attended.sink_weights[r] * ((rows.dlse.empty() ? 0 : rows.dlse[r]) - delta[r]);
    lead_through_softcap(attended.slopes, gradients, round);
    add_weighted(gradients, rows.key, p.head_dim_qk, query_gradients);
    add_weighted_rows(gradients, rows.query.data(), p.head_dim_qk, share.key.data());
}

// Query head n. query_gradients: of the whole tensor.
template <typename T, typename Round, typename Store>
Share<T> add_head(const Problem& p, const Tensors<T>& tensors, std::size_t n, T* query_gradients, Round round,
                  Store store) {
    const Head head(p, n);
    const std::span<const T> key = head.keys_of(tensors.key, p.head_dim_qk);
    const std::span<const T> value = head.keys_of(tensors.value, p.head_dim_v);
    const std::vector<T> key_transposed = transpose(key, p.head_dim_qk);
    const std::vector<T> value_transposed = transpose(value, p.head_dim_v);
    Share<T> share{std::vector<T>(key.size()), std::vector<T>(value.size()), {}, 0};
    if (mask_has_gradient(p)) share.mask.resize(mask_plane_size(*p.mask));
    for (std::size_t i = 0; i < p.seqlen_q; i += rows_per_block) {
        const std::size_t last = std::min(i + rows_per_block, p.seqlen_q);
        const std::size_t row = n * p.seqlen_q + i;
        const auto rows_of = [&](std::span<const T> tensor, std::size_t width) {
            return tensor.empty() ? tensor : tensor.subspan(row * width, (last - i) * width);
        };
        const Rows<T> rows{head,
                           i,
                           last,
                           rows_of(tensors.query, p.head_dim_qk),
                           rows_of(tensors.dout, p.head_dim_v),
                           rows_of(tensors.dlse, 1),
                           key.data(),
                           value.data(),
                           key_transposed.data(),
                           value_transposed.data()};
        add_rows(p, rows, query_gradients + row * p.head_dim_qk, share, round, store);
    }
    return share;
}

template <typename T>
void add(const std::vector<T>& addend, T* sum) {
    for (std::size_t n = 0; n < addend.size(); ++n) sum[n] += addend[n];
}

// `Result` is Gradients or NaiveGradients; all arithmetic in its type.
template <typename Result, typename T, typename Round, typename Store>
Result all_gradients(const Problem& p, const Tensors<T>& tensors, Round round, Store store) {
    validate(p, tensors.query.size(), tensors.key.size(), tensors.value.size());
    const std::size_t rows = p.batch * p.num_heads_q * p.seqlen_q;
    require(tensors.dout.size() == rows * p.head_dim_v, "dout size");
    require(tensors.dlse.empty() || tensors.dlse.size() == rows, "dlse size");

    Result result;
    result.query.resize(tensors.query.size());
    result.key.resize(tensors.key.size());
    result.value.resize(tensors.value.size());
    if (mask_has_gradient(p)) result.mask.resize(p.mask->values.size());
    result.sinks.resize(p.sinks.size());

    std::vector<Share<T>> shares(p.batch * p.num_heads_q);
    for_each_head(
        p, [&](std::size_t n) { shares[n] = add_head(p, tensors, n, result.query.data(), round, store); });
    for (std::size_t n = 0; n < shares.size(); ++n) {
        const Head head(p, n);
        add(shares[n].key, result.key.data() + head.first_key * p.head_dim_qk);
        add(shares[n].value, result.value.data() + head.first_key * p.head_dim_v);
        if (!p.sinks.empty()) result.sinks[head.head] += shares[n].sink;
        if (mask_has_gradient(p)) add(shares[n].mask, result.mask.data() + mask_plane(p, head));
    }

    const T scale = static_cast<T>(p.softmax_scale);
    for (T& x : result.query) x = store.query(scale * x);
    for (T& x : result.key) x = store.key(scale * x);
    for (T& x : result.value) x = store.value(x);
    for (T& x : result.mask) x = store.mask(x);
    return result;
}

}  // namespace

Gradients backward(const Problem& problem, std::span<const double> query, std::span<const double> key,
                   std::span<const double> value, std::span<const double> dout,
                   std::span<const double> dlse) {
    const auto as_it_is = [](double x) { return x; };
    return all_gradients<Gradients>(problem, Tensors<double>{query, key, value, dout, dlse}, as_it_is,
                                    Stores{as_it_is, as_it_is, as_it_is, as_it_is, as_it_is});
}

NaiveGradients naive_backward(const Problem& problem, std::span<const double> query,
                              std::span<const double> key, std::span<const double> value,
                              std::span<const double> dout, std::span<const double> dlse,
                              const StorageTypes& types, std::optional<StorageType> operands) {
    const auto rounds_to = [](StorageType type) {
        return [type](float x) { return round_to_storage(x, type); };
    };
    const auto round = rounds_to(operands.value_or(types.out));
    std::vector<float> q = narrow(query), k = narrow(key), v = narrow(value), incoming = narrow(dout);
    if (operands)  // else they are of the storage type as they are
        for (auto* tensor : {&q, &k, &v, &incoming})
            for (float& x : *tensor) x = round(x);
    const std::vector<float> incoming_lse = narrow(dlse);
    return all_gradients<NaiveGradients>(
        problem, Tensors<float>{q, k, v, incoming, incoming_lse}, round,
        Stores{rounds_to(types.out), rounds_to(types.query), rounds_to(types.key), rounds_to(types.value),
               rounds_to(types.mask)});
}

}  // namespace oracle
