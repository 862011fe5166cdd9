// The fp64 oracle and the error rule: DESIGN.md sections 3 and 4, written without any of the library's code.
//
// Tensors are contiguous: query (batch, num_heads_q, seqlen_q, head_dim_qk), key (batch, num_heads_kv,
// seqlen_kv, head_dim_qk), value (.., seqlen_kv, head_dim_v), out (batch, num_heads_q, seqlen_q, head_dim_v)
// and lse (batch, num_heads_q, seqlen_q). Inputs are what the device sees: values already rounded to their
// storage type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace oracle {

enum class Alignment { top_left, bottom_right, given };

// Aligned from the right to (batch, num_heads_q, seqlen_q, seqlen_kv); extents of 1 broadcast. Of m heads, query head h
// reads head h / (num_heads_q / m). A last extent shorter than seqlen_kv (and not 1) hides the keys beyond it.
struct Mask {
    bool additive = false;             // added to the score, -inf hides; otherwise a key is visible if not 0
    std::vector<std::size_t> extents;  // rank 1 to 4
    std::vector<double> values;        // C order
};

// Blocks of query rows and keys, counted from 0: 0 hides, 1 leaves the mask out, anything else is as without a map.
struct BlockMap {
    std::size_t rows = 16, keys = 16;  // of a block
    std::size_t batches = 1,
                heads = 1;  // batches: 1 or all; of m heads, query head h reads h / (num_heads_q / m)
    std::vector<std::uint8_t> values = {};  // (batches, heads, blocks of rows, blocks of keys)
};

struct Problem {
    std::size_t batch = 1;
    std::size_t num_heads_q = 1;
    std::size_t num_heads_kv = 1;
    std::size_t seqlen_q = 1;
    std::size_t seqlen_kv = 1;
    std::size_t head_dim_qk = 1;
    std::size_t head_dim_v = 1;

    double softmax_scale = 1;
    double softcap = 0;  // 0: none
    bool causal = false;
    std::int64_t window_left = -1;  // -1: unbounded
    std::int64_t window_right = -1;

    Alignment alignment = Alignment::bottom_right;
    std::vector<std::int64_t> query_offset = {};  // Alignment::given: one, or one per batch
    std::vector<std::int64_t> kv_lengths = {};    // one per batch; empty: seqlen_kv
    std::optional<Mask> mask = {};

    // One per query head, or per batch and query head; empty: none.
    std::vector<double> head_slopes = {};
    bool slopes_of_mask = false;     // they multiply the mask; otherwise the distance, which is subtracted
    std::vector<double> sinks = {};  // one per query head: a score that has no value; empty: none
    std::optional<BlockMap> block_map = {};
};

struct Result {
    std::vector<double> out;
    std::vector<double> lse;  // -inf where a row sees no key, or the sink
};

// forward and naive_forward throw std::invalid_argument if sizes do not fit together.
Result forward(const Problem& problem, std::span<const double> query, std::span<const double> key,
               std::span<const double> value);

enum class StorageType { float32, float16, bfloat16 };

// The yardstick of the error rule: the same attention, row by row, all arithmetic in float32, out rounded to the
// storage type, query, key, value and the normalised probabilities to that of the products' operands (no type: the
// storage's).
struct NaiveResult {
    std::vector<float> out;
    std::vector<float> lse;
};
NaiveResult naive_forward(const Problem& problem, std::span<const double> query, std::span<const double> key,
                          std::span<const double> value, StorageType storage,
                          std::optional<StorageType> operands = {});

// max |result - oracle| <= 2 * max |naive - oracle| + 1 storage ulp at max |oracle| (float32: + 1e-6 * max
// |oracle|). -inf must stand exactly where the oracle has it; NaN never passes. For lse the storage type is
// float32.
struct Bound {
    double measured = 0;     // inf at a NaN or a misplaced infinity
    double allowed = 0;      // inf, and never ok, if the naive result overflowed
    std::size_t worst = 0;   // index of the measured error
    double naive_error = 0;  // its largest
    double largest = 0;      // of the finite numbers of the oracle, without their signs
    bool ok = false;
};
// The error that the rule allows.
double allowed_error(double naive_error, double largest, StorageType storage);
Bound check(std::span<const float> result, std::span<const double> oracle, std::span<const float> naive,
            StorageType storage);

float round_to_storage(float x, StorageType storage);  // to nearest, ties to even
float largest_number(StorageType storage);
double storage_ulp(double x, StorageType storage);

}  // namespace oracle
