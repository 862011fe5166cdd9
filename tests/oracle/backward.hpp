// Gradients of the oracle's attention and the yardstick for them; tensors and inputs as in attention.hpp.
//
// With P = softmax of the scores and dP = dout . value^T, the scores' gradient is
// P * (dP - rowsum(dout * out) + dlse). A softcap's slope and the scale lead on to query and key, P to value.
// What is hidden has gradient 0 and is not read, whatever it holds: keys, rows that see none, their dout, dlse.
#pragma once

#include <span>
#include <vector>

#include "attention.hpp"

namespace oracle {

// Of the shapes of the tensors; grouped query heads add up. mask: in the mask's own extents, summed over the
// dimensions in which it broadcasts and the query heads that read the same mask head, 0 where it is -inf; empty unless
// the mask is additive. sinks: one per query head, of rows that see a key; empty without sinks.
struct Gradients {
    std::vector<double> query, key, value, mask, sinks;
};

// dout is shaped as out and dlse as lse, or empty: 0. Both functions throw std::invalid_argument if sizes do not
// fit together.
Gradients backward(const Problem& problem, std::span<const double> query, std::span<const double> key,
                   std::span<const double> value, std::span<const double> dout, std::span<const double> dlse);

// How out is stored, and the gradients, each as what it is of.
struct StorageTypes {
    StorageType out, query, key, value, mask;
    // NOLINTNEXTLINE(google-explicit-constructor): all in one type
    constexpr StorageTypes(StorageType all) : StorageTypes(all, all, all, all, all) {}
    constexpr StorageTypes(StorageType o, StorageType q, StorageType k, StorageType v, StorageType m)
        : out(o), query(q), key(k), value(v), mask(m) {}
};

// The yardstick: all arithmetic in float32; out, P, the gradient of scale * (q.k) and the results rounded to their
// storage types, the scores' gradient on its way to the mask's not. `operands`: what all that products multiply is
// rounded to instead of out's type, query, key, value and dout too.
struct NaiveGradients {
    std::vector<float> query, key, value, mask, sinks;
};
NaiveGradients naive_backward(const Problem& problem, std::span<const double> query,
                              std::span<const double> key, std::span<const double> value,
                              std::span<const double> dout, std::span<const double> dlse,
                              const StorageTypes& types, std::optional<StorageType> operands = {});

}  // namespace oracle
