// GPU cases as lines of text. A line is words, each "name" or "name=value", and becomes a Case; tests/cases/forward.txt
// explains the words. "[name]" begins a section, "#" a comment.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "arrays.hpp"
#include "oracle/attention.hpp"
#include "vkattn/vkattn.hpp"

namespace vkattn::test {

// what() begins with file:line.
class CaseError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

enum class Layout { bhsd, bshd };
enum class Values { normal, large, huge, equal, ascending, descending, spike, quarters, limit, channel };
// This says what lies more than 4 GiB apart. `batch`, `head`, `row` and `part` (of a combine) need two of theirs;
// `lse` needs so many batches that the lse of the last one lies that far behind the lse of the first one.
enum class Far { none, batch, head, row, part, lse };
enum class MaskFill { random, banded, rows, tail, lowest, far };

bool is_strided(Far far);                 // batch, head or row: a stride of the tensors says how far
constexpr uint32_t far_lse_batches = 32;  // the last ones, which are looked at

struct Case : CaseArrays {
    std::string where, text;                    // "file:line"; the line itself
    VkattnProblem problem = vkattn::problem();  // strides and all
    std::string kernel = "auto", tuning;
    uint64_t max_scratch_bytes = 0, max_dispatch_flops = 0;
    uint32_t num_splits = 0;
    bool batch_invariant = false;
    VkattnPrecision precision = VKATTN_PRECISION_STORAGE;
    bool lse = true;
    bool dlse = false;  // of the backward: the lse has an incoming gradient
    bool dbias = true;  // of the backward: the gradient of a float mask is wanted
    // These are the strides of dquery, dkey, dvalue and dout. Without them each lies as its tensor does, if an output
    // can.
    std::array<std::optional<VkattnStrides>, 4> gradient_strides;
    // Of a combine, whose problem says what is merged, by batch, num_heads_q, seqlen_q and head_dim_v.
    uint32_t num_parts = 1;
    VkattnDtype parts_dtype = VKATTN_DTYPE_FLOAT32;
    uint32_t seed = 1;
    Values values = Values::normal;
    MaskFill mask_fill = MaskFill::random;
    Far far = Far::none;   // of batches, heads and rows the strides are examples: see set_far_strides
    uint32_t company = 0;  // query rows that a second run has before the case's own
    bool nonfinite = false;
    std::string note;  // what was changed of it for a device

    VkattnOptions options() const;  // points into this object
    // Cases of one key use the same pipelines.
    std::string pipeline_key() const;
};

struct Section {
    std::string name;
    std::vector<Case> cases;
};

// Throws CaseError. `file` is for messages only.
std::vector<Section> parse_cases(std::string_view text, const std::string& file);
Case parse_case(std::string_view line, const std::string& where = "here");

// A tensor's extents but for the batch. Tensors 0 to 3 are query, key, value and out.
struct Extents {
    uint64_t heads, rows, dim;
};
Extents extents_of(const VkattnProblem& p, int tensor);
VkattnStrides& strides_of(VkattnProblem& p, int tensor);
VkattnDtype dtype_of(const VkattnProblem& p, int tensor);
VkattnDtype mask_dtype_of(const VkattnProblem& p);

// The gradients that a case asks for, with their strides.
VkattnBackward backward_of(const Case& c);
uint64_t mask_count(const VkattnProblem& p);  // elements of its mask

// Lays the tensors of a case with far batches, heads or rows out densely, except that the stride of the far
// dimension becomes `bytes`.
void set_far_strides(Case& c, uint64_t bytes);

constexpr int64_t widest_window = int64_t{1} << 40;

// The problem as the oracle has it: the same numbers, none of the library's defaults, and no mask yet.
oracle::Problem oracle_problem(const Case& c);

}  // namespace vkattn::test
