// These tests set every integer field of a problem, its options, a backward and a combine to its extremes, every pair
// of them together. There must be a sound plan with the bounds that the definition has, or a refusal that names a
// field.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <type_traits>

#include <fmt/format.h>

#include "plan_flaws.hpp"
#include "problem_bounds.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr int64_t two_30 = int64_t{1} << 30, two_31 = int64_t{1} << 31, two_32 = int64_t{1} << 32;
constexpr int32_t int_min = std::numeric_limits<int32_t>::min(),
                  int_max = std::numeric_limits<int32_t>::max();

// A subject is all that a caller says of a forward, its backward or a combine.
struct Subject {
    VkattnProblem problem = core::default_problem();
    VkattnBackward backward = core::default_backward();
    VkattnCombine combine = core::default_combine();
    Options options;
};

using Set = std::function<void(Subject&)>;

// A field has values that are legal beside most others, and hostile ones: values of any kind.
struct Field {
    std::string name;
    std::vector<Set> legal, hostile;
    std::vector<bool> never_legal;  // of the hostile ones
};

// Returns an orthogonal array: rows that hold every pair of levels of any two of at most prime + 1 factors. Levels are
// numbers below `prime`; those beyond a factor's own count wrap around.
std::vector<std::vector<size_t>> pairs(size_t factors, size_t prime) {
    std::vector<std::vector<size_t>> rows;
    for (size_t a = 0; a < prime; a++)
        for (size_t b = 0; b < prime; b++) {
            std::vector<size_t> row;
            for (size_t f = 0; f < factors; f++) row.push_back(f == prime ? b : (a + f * b) % prime);
            rows.push_back(std::move(row));
        }
    return rows;
}

// These are the numbers at which 32-bit and 64-bit arithmetic goes wrong.
const std::vector<int64_t> all_words{0,          1,      two_30,  two_30 + 1, two_31 - 1, two_31, -two_31, -1,
                                     two_32 - 1, two_32, -two_32, INT64_MAX,  INT64_MIN,  65535,  65536};
// An enumeration has no values beyond these.
const std::vector<int64_t> enumerators{0, 1, 2, 3, 4, 5, two_31 - 1};

// at(subject) is the field. `illegal`: values that are refused whatever the other fields hold.
template <class At>
Field field(const std::string& name, At at, const std::vector<int64_t>& legal,
            const std::vector<int64_t>& illegal) {
    using T = std::remove_reference_t<std::invoke_result_t<At, Subject&>>;
    const auto put = [at](int64_t value) -> Set {
        return [at, value](Subject& s) { at(s) = static_cast<T>(value); };
    };
    Field f{name, {}, {}, {}};
    for (const int64_t value : legal) f.legal.push_back(put(value));
    for (const int64_t value : std::is_enum_v<T> ? enumerators : all_words) {
        f.hostile.push_back(put(value));
        f.never_legal.push_back(false);
    }
    for (const int64_t value : illegal) {
        f.hostile.push_back(put(value));
        f.never_legal.push_back(true);
    }
    return f;
}

#define AT(member) [](Subject& s) -> decltype(s.member)& { return s.member; }

// Tensors 0 .. 3 are those of a problem, 4 .. 7 its gradients.
VkattnStrides& strides_at(Subject& s, int tensor) {
    VkattnStrides* const all[] = {&s.problem.query_strides, &s.problem.key_strides,
                                  &s.problem.value_strides, &s.problem.out_strides,
                                  &s.backward.dout_strides, &s.backward.dquery_strides,
                                  &s.backward.dkey_strides, &s.backward.dvalue_strides};
    return *all[tensor];
}
constexpr const char* stride_names[] = {
    "problem.query_strides", "problem.key_strides",     "problem.value_strides", "problem.out_strides",
    "backward.dout_strides", "backward.dquery_strides", "backward.dkey_strides", "backward.dvalue_strides"};

uint64_t unit_of(const VkattnProblem& p) {
    return std::max<uint64_t>(1, p.alignment_bytes / (p.dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2));
}

struct Extents {
    uint64_t batch, heads, rows, dim;
};
Extents extents_of(const VkattnProblem& p, int tensor) {
    const bool of_query = tensor == 0 || tensor == 3 || tensor == 4 || tensor == 5;
    const bool has_v = tensor == 2 || tensor == 3 || tensor == 4 || tensor == 7;
    return {p.batch, of_query ? p.num_heads_q : p.num_heads_kv, of_query ? p.seqlen_q : p.seqlen_kv,
            has_v ? p.head_dim_v : p.head_dim_qk};
}

enum class Place { dense, transposed, gaps, broadcast, far };

void lay_out(Subject& s, int tensor, Place place) {
    const VkattnProblem& p = s.problem;
    const uint64_t unit = unit_of(p);
    const Extents n = extents_of(p, tensor);
    const uint64_t row = (n.dim + unit - 1) / unit * unit;
    VkattnStrides& to = strides_at(s, tensor);
    switch (place) {
        case Place::dense:
            to = {n.heads * n.rows * row, n.rows * row, row};
            if (row == n.dim) to = core::default_problem().query_strides;
            return;
        case Place::transposed:
            to = {n.rows * n.heads * row, row, n.heads * row};
            return;
        case Place::gaps:
            to = {n.heads * (n.rows * (row + unit) + unit), n.rows * (row + unit) + unit, row + unit};
            return;
        case Place::broadcast:
            to = {0, 0, row};
            return;
        case Place::far:  // the last row nearly 2^62 bytes from the first
            to = {0, 0, (uint64_t{1} << 59) / std::max<uint64_t>(1, n.rows) / unit * unit};
            return;
    }
}

Field strides(int tensor) {
    Field f{stride_names[tensor], {}, {}, {}};
    const bool output = tensor == 3 || tensor > 4;
    for (const Place place : {Place::dense, Place::transposed, Place::gaps, Place::broadcast, Place::far})
        if (!output || place < Place::broadcast)
            f.legal.push_back([=](Subject& s) { lay_out(s, tensor, place); });
    for (int level = 0; level < 3; level++)
        for (const int64_t word : all_words) {
            f.hostile.push_back([=](Subject& s) {
                VkattnStrides& to = strides_at(s, tensor);
                uint64_t* const levels[] = {&to.batch, &to.head, &to.seq};
                *levels[level] = static_cast<uint64_t>(word);
            });
            // INT64_MIN elements and more span too much; -1 is VKATTN_CONTIGUOUS.
            f.never_legal.push_back(word == INT64_MAX || (word < 0 && word != -1));
        }
    return f;
}

// A mask has the whole extent of each dimension or one element; the last extent may be short, too.
Field mask_extents() {
    Field f{"problem.mask_extents", {}, {}, {}};
    for (uint32_t choice = 0; choice < 31; choice++)
        f.legal.push_back([=](Subject& s) {
            VkattnProblem& p = s.problem;
            const uint32_t rank = std::min(std::max(p.mask_rank, 1u), 4u);
            const uint32_t keys[] = {p.seqlen_kv, 1, p.seqlen_kv / 2, 0},
                           full[] = {p.batch, p.num_heads_q, p.seqlen_q, keys[choice >> 3]};
            for (uint32_t i = 0; i < rank; i++) {
                const uint32_t at = 4 - rank + i;
                p.mask_extents[i] = at < 3 && (choice >> at & 1) != 0 ? 1 : full[at];
            }
        });
    for (size_t i = 0; i < 4; i++)
        for (const int64_t word : all_words) {
            f.hostile.push_back([=](Subject& s) { s.problem.mask_extents[i] = static_cast<uint32_t>(word); });
            f.never_legal.push_back(false);
        }
    return f;
}

// The order is such that a legal value can depend on the fields before it.
std::vector<Field> problem_fields() {
    const std::vector<int64_t> windows{-1, 0, 1, 97, two_31 - 2, two_31 - 1, two_31, two_32, INT64_MAX};
    const std::vector<int64_t> past_window{-2, -two_31, -two_32, INT64_MIN};
    std::vector<Field> all{
        field("problem.dtype", AT(problem.dtype), {0, 1, 2}, {3, two_31 - 1}),
        field("problem.num_heads_q", AT(problem.num_heads_q), {1, 2, 65535}, {0, 65536, two_31, two_32 - 1}),
        field("problem.num_heads_kv", AT(problem.num_heads_kv), {1}, {0, 65536, two_32 - 1}),
        field("problem.batch", AT(problem.batch), {0, 1, 3}, {two_31, two_32 - 1}),
        field("problem.seqlen_q", AT(problem.seqlen_q), {0, 1, 7, 97, two_30}, {two_30 + 1, two_32 - 1}),
        field("problem.seqlen_kv", AT(problem.seqlen_kv), {0, 1, 97, two_30 - 1, two_30},
              {two_30 + 1, two_32 - 1}),
        field("problem.head_dim_qk", AT(problem.head_dim_qk), {1, 64, 576}, {0, 577, two_32 - 1}),
        field("problem.head_dim_v", AT(problem.head_dim_v), {1, 64, 576}, {0, 577, two_32 - 1}),
        field("problem.causal", AT(problem.causal), {0, 1, two_32 - 1}, {}),
        field("problem.window_left", AT(problem.window_left), windows, past_window),
        field("problem.window_right", AT(problem.window_right), windows, past_window),
        field("problem.align", AT(problem.align), {0, 1, 2, 3}, {4, two_31 - 1}),
        field("problem.query_offset", AT(problem.query_offset), {0, 1, -1, two_31 - 1, two_31, -two_31}, {}),
        field("problem.kv_lengths", AT(problem.kv_lengths), {0, 1, two_32 - 1}, {}),
        field("problem.mask", AT(problem.mask), {0, 1, 2}, {3, two_31 - 1}),
        field("problem.mask_rank", AT(problem.mask_rank), {1, 2, 3, 4}, {}),
        field("problem.alignment_bytes", AT(problem.alignment_bytes), {0, 4, 16, 32}, {1, 3, two_32 - 1}),
        mask_extents(),
    };
    // Heads of all batches may be as many as there can be, and groups have several sizes.
    all[3].legal.push_back(
        [](Subject& s) { s.problem.batch = static_cast<uint32_t>((two_31 - 1) / s.problem.num_heads_q); });
    all[2].legal.push_back([](Subject& s) { s.problem.num_heads_kv = s.problem.num_heads_q; });
    all[2].legal.push_back([](Subject& s) {
        s.problem.num_heads_kv = s.problem.num_heads_q % 3 == 0 ? s.problem.num_heads_q / 3 : 1;
    });
    for (int tensor = 0; tensor < 4; tensor++) all.push_back(strides(tensor));
    return all;
}

std::vector<Field> option_fields(bool backward) {
    Field splits = field("options.num_splits", AT(options.num_splits), {}, {});
    for (const int64_t value :
         {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{65535}, int64_t{65536}, two_32 - 1})
        splits.legal.push_back([=](Subject& s) {  // a backward and what is batch-invariant are not split
            s.options.num_splits = backward || s.options.batch_invariant ? static_cast<uint32_t>(value % 2)
                                                                         : static_cast<uint32_t>(value);
        });
    Field precision = field("options.precision", AT(options.precision), {0}, {3, two_31 - 1});
    for (const VkattnPrecision value : {VKATTN_PRECISION_FLOAT16, VKATTN_PRECISION_BFLOAT16})
        precision.legal.push_back([=](Subject& s) {  // of 16-bit problems it is the storage type
            const VkattnDtype dtype = s.problem.dtype;
            s.options.precision = dtype == VKATTN_DTYPE_FLOAT16    ? VKATTN_PRECISION_FLOAT16
                                  : dtype == VKATTN_DTYPE_BFLOAT16 ? VKATTN_PRECISION_BFLOAT16
                                  : backward                       ? VKATTN_PRECISION_STORAGE
                                                                   : value;
        });
    return {field("options.max_scratch_bytes", AT(options.max_scratch_bytes),
                  {0, 1, 1 << 20, two_31, two_32, INT64_MAX, -1}, {}),
            field("options.max_dispatch_flops", AT(options.max_dispatch_flops),
                  {0, 1, 1'000'000'000, two_32 * two_30, INT64_MAX, -1}, {}),
            field("options.batch_invariant", AT(options.batch_invariant), {0, 1}, {}), splits, precision};
}

std::vector<Field> backward_fields() {
    std::vector<Field> all{field("backward.dlse", AT(backward.dlse), {0, 1, two_32 - 1}, {}),
                           field("backward.dbias", AT(backward.dbias), {0, 1, two_32 - 1}, {})};
    for (int tensor = 4; tensor < 8; tensor++) all.push_back(strides(tensor));
    return all;
}

// `parts`: the strides of a combine's parts; else those of its output.
Field combine_strides(bool parts) {
    Field f{parts ? "combine.parts_strides" : "combine.out_strides", {}, {}, {}};
    const auto at = [=](Subject& s) -> VkattnStrides& {
        return parts ? s.combine.parts_strides : s.combine.out_strides;
    };
    for (const uint64_t gap : {0u, 32u})
        f.legal.push_back([=](Subject& s) {
            const VkattnCombine& c = s.combine;
            const uint64_t row = (uint64_t{c.head_dim_v} + 31) / 32 * 32 + gap, head = row * c.seqlen_q + gap;
            at(s) = {head * c.num_heads + gap, head, row};
        });
    if (parts) f.legal.push_back([=](Subject& s) { at(s) = {0, 0, 0}; });
    for (int level = 0; level < 3; level++)
        for (const int64_t word : all_words) {
            f.hostile.push_back([=](Subject& s) {
                uint64_t* const levels[] = {&at(s).batch, &at(s).head, &at(s).seq};
                *levels[level] = static_cast<uint64_t>(word);
            });
            f.never_legal.push_back(word == INT64_MAX || (word < 0 && word != -1));
        }
    return f;
}

std::vector<Field> combine_fields() {
    std::vector<Field> all{
        field("combine.dtype", AT(combine.dtype), {0, 1, 2}, {3, two_31 - 1}),
        field("combine.parts_dtype", AT(combine.parts_dtype), {0}, {3, two_31 - 1}),
        field("combine.num_parts", AT(combine.num_parts), {1, 2, 65535, two_31, two_32 - 1}, {0}),
        field("combine.num_heads", AT(combine.num_heads), {1, 2, 65535}, {0, 65536, two_32 - 1}),
        field("combine.batch", AT(combine.batch), {0, 1, 3}, {two_31, two_32 - 1}),
        field("combine.seqlen_q", AT(combine.seqlen_q), {0, 1, 97, two_30}, {two_30 + 1, two_32 - 1}),
        field("combine.head_dim_v", AT(combine.head_dim_v), {1, 64, 576}, {0, 577, two_32 - 1}),
        field("combine.alignment_bytes", AT(combine.alignment_bytes), {0, 4, 16, 64}, {1, 3, two_32 - 1}),
        combine_strides(true),
        combine_strides(false),
        field("combine.part_stride", AT(combine.part_stride), {0, 32, two_30}, {INT64_MAX, -two_31}),
    };
    all[1].legal.push_back([](Subject& s) { s.combine.parts_dtype = s.combine.dtype; });
    all[4].legal.push_back(
        [](Subject& s) { s.combine.batch = static_cast<uint32_t>((two_31 - 1) / s.combine.num_heads); });
    return all;
}

enum class Of { forward, backward, combine };

std::vector<Field> fields_of(Of of) {
    if (of == Of::combine) return combine_fields();
    std::vector<Field> all = problem_fields();
    const auto append = [&](std::vector<Field> more) { all.insert(all.end(), more.begin(), more.end()); };
    append(option_fields(of == Of::backward));
    if (of == Of::backward) append(backward_fields());
    return all;
}

// This compares the shader's bounds with the definition, for lengths and offsets of the batch's own at their extremes.
std::string bounds_flaw(const VkattnProblem& given, const core::Problem& p) {
    if (p.seqlen_q == 0) return "";
    const auto kv = static_cast<int32_t>(p.seqlen_kv), q = static_cast<int32_t>(p.seqlen_q);
    const std::vector<int32_t> none{0}, lengths{int_min, -1, 0, 1, kv / 2, kv, int_max},
        offsets{int_min, int_min + 1, -q, -1, 0, 1, kv, int_max - q, int_max - 1, int_max};
    for (const int32_t i : {0, q / 2, q - 1})
        for (const int32_t length : p.kv_lengths != 0 ? lengths : none)
            for (const int32_t offset : p.align == VKATTN_ALIGN_OFFSETS ? offsets : none)
                if (auto flaw = row_flaw(given, p, static_cast<uint32_t>(i), length, offset); !flaw.empty())
                    return fmt::format("length {} offset {}: {}", length, offset, flaw);
    return "";
}

// An outcome is what becomes of a subject, a refusal or a plan, and what is wrong with it.
struct Outcome {
    bool resolved = false, planned = false;
    std::string field, flaw;
};

// A refusal must have a status of the contract, a field that exists and one line of text.
Outcome refusal(const core::Failure& why, bool resolved, const std::set<std::string>& names) {
    Outcome o{resolved, false, why.field, ""};
    const bool is_invalid = why.status == VKATTN_INVALID_ARGUMENT;
    if (!is_invalid && (why.status != VKATTN_UNSUPPORTED || !resolved)) o.flaw = "status";
    if (!why.field.empty() && names.count(why.field) == 0) o.flaw = "there is no field " + why.field;
    if (is_invalid && why.field.empty()) o.flaw = "no field is named: " + why.message;
    if (why.message.empty() || why.message.find('\n') != std::string::npos) o.flaw = "text: " + why.message;
    return o;
}

// Some devices have matrix units and some have none; they are taken in turn.
const DeviceCaps& device(size_t turn) {
    static const std::vector<DeviceCaps> all{probed(matrix_device("nvidia_h200")), smallest_device(),
                                             matrix_device("lavapipe"), matrix_device("amd_navi31")};
    return all[turn % all.size()];
}

// A plan must be sound. Plans of more dispatches than `many` take long to check and are like others: of those only the
// number of dispatches is checked, against the boxes that a few grids may be cut into.
template <class Check>
Outcome plan_outcome(const core::Result<Plan>& plan, const std::set<std::string>& names, const Check& check) {
    constexpr size_t many = 300, most = 4 * 65536;
    if (!plan) return refusal(plan.failure(), true, names);
    const size_t count = plan->dispatches.size();
    return {true, true, "", count <= many ? check(*plan) : count <= most ? "" : "too many dispatches"};
}

Outcome outcome(const Subject& s, Of of, const std::set<std::string>& names, size_t turn) {
    const DeviceCaps& caps = device(turn);
    if (of == Of::combine) {
        const auto c = core::resolve(s.combine);
        if (!c) return refusal(c.failure(), false, names);
        return plan_outcome(make_plan(caps, *c), names, [&](const Plan& p) { return flaw_of(caps, *c, p); });
    }
    const auto p = core::resolve(s.problem);
    if (!p) return refusal(p.failure(), false, names);
    if (auto flaw = bounds_flaw(s.problem, *p); !flaw.empty()) return {true, false, "", flaw};
    if (of == Of::forward)
        return plan_outcome(make_plan(caps, *p, s.options), names,
                            [&](const Plan& plan) { return flaw_of(caps, *p, plan, s.options); });
    const auto b = core::resolve(*p, s.backward);
    if (!b) return refusal(b.failure(), false, names);
    return plan_outcome(make_plan(caps, *p, *b, s.options), names,
                        [&](const Plan& plan) { return flaw_of(caps, *p, *b, plan, s.options); });
}

// The smallest prime of some that `pairs` needs for these fields' legal values.
size_t prime_for(const std::vector<Field>& fields) {
    size_t least = fields.size() - 1;
    for (const Field& f : fields) least = std::max(least, f.legal.size());
    for (const size_t prime : {11u, 13u, 17u, 31u, 37u, 41u})
        if (prime >= least) return prime;
    throw std::logic_error("no prime is large enough");
}

// A sweep makes the subjects of a kind, counts what becomes of them, and keeps the first flaws.
class Sweep {
  public:
    explicit Sweep(Of of) : fields(fields_of(of)), of_(of), rows_(pairs(fields.size(), prime_for(fields))) {
        for (const Field& f : fields) names_.insert(f.name);
    }
    ~Sweep() { CHECK_EQ(flaws_, ""); }
    Sweep(const Sweep&) = delete;
    Sweep& operator=(const Sweep&) = delete;

    size_t rows() const { return rows_.size(); }
    Subject legal(size_t row) const {
        Subject s;
        for (size_t f = 0; f < fields.size(); f++)
            fields[f].legal[rows_[row % rows()][f] % fields[f].legal.size()](s);
        return s;
    }
    Outcome add(const Subject& s, const std::string& what) {
        const Outcome o = outcome(s, of_, names_, all++);
        resolved += o.resolved;
        planned += o.planned;
        if (!o.flaw.empty()) complain(o.flaw, s, what);
        return o;
    }
    bool resolves(const Subject& s) const { return outcome(s, of_, names_, 0).resolved; }
    void complain(const std::string& flaw, const Subject& s, const std::string& what) {
        const VkattnProblem& p = s.problem;
        if (flaws_.size() > 3000) return;
        flaws_ += fmt::format(
            "{} ({}: dtype {} batch {} heads {}:{} seqlens {}x{} dims {}/{} causal {} window {},{} "
            "align {} offset {} lengths {} mask {} rank {} alignment {} splits {} flops {})\n",
            flaw, what, static_cast<uint32_t>(p.dtype), p.batch, p.num_heads_q, p.num_heads_kv, p.seqlen_q,
            p.seqlen_kv, p.head_dim_qk, p.head_dim_v, p.causal, p.window_left, p.window_right,
            static_cast<uint32_t>(p.align), p.query_offset, p.kv_lengths, static_cast<uint32_t>(p.mask),
            p.mask_rank, p.alignment_bytes, s.options.num_splits, s.options.max_dispatch_flops);
    }

    const std::vector<Field> fields;
    size_t all = 0, resolved = 0, planned = 0;

  private:
    Of of_;
    std::vector<std::vector<size_t>> rows_;
    std::set<std::string> names_;
    std::string flaws_;
};

// This sets each hostile value among legal extremes. Values that are never legal must be refused by their field's name.
void check_each(Of of, size_t tries) {
    Sweep sweep(of);
    size_t named = 0;
    for (const Field& field : sweep.fields)
        for (size_t h = 0; h < field.hostile.size(); h++)
            for (size_t t = 0; t < tries; t++) {
                Subject s = sweep.legal(sweep.all * 7);
                const bool was_legal = sweep.resolves(s);
                field.hostile[h](s);
                const Outcome o = sweep.add(s, field.name);
                if (!field.never_legal[h] || !was_legal) continue;
                named++;
                if (o.field != field.name) sweep.complain("'" + o.field + "' is named", s, field.name);
            }
    CHECK_GT(named, 20);
    CHECK_GT(sweep.resolved, sweep.all / 4);
}

// This sets two fields to hostile values, among legal extremes.
void check_two(Of of, size_t tries) {
    Sweep sweep(of);
    const auto& fields = sweep.fields;
    for (size_t f = 0; f < fields.size(); f++)
        for (size_t g = f + 1; g < fields.size(); g++)
            for (size_t t = 0; t < tries; t++) {
                Subject s = sweep.legal(sweep.all * 5);
                fields[f].hostile[(sweep.all * 11) % fields[f].hostile.size()](s);
                fields[g].hostile[(sweep.all * 3 + t) % fields[g].hostile.size()](s);
                sweep.add(s, fields[f].name + ", " + fields[g].name);
            }
    CHECK_GT(sweep.resolved, sweep.all / 20);
    CHECK_LT(sweep.resolved, sweep.all);
}

}  // namespace

TEST_CASE("extremes: an array of rows holds every pair of levels") {
    const auto rows = pairs(8, 7);
    for (size_t f = 0; f < 8; f++)
        for (size_t g = f + 1; g < 8; g++) {
            std::set<std::pair<size_t, size_t>> seen;
            for (const auto& row : rows) seen.insert({row[f], row[g]});
            CHECK_EQ(seen.size(), 49);
        }
}

TEST_CASE("extremes: every pair of legal ones") {
    for (const Of of : {Of::forward, Of::backward, Of::combine}) {
        Sweep sweep(of);
        for (size_t row = 0; row < sweep.rows(); row++) sweep.add(sweep.legal(row), "legal");
        CHECK_GT(sweep.resolved, sweep.all / 3);
        CHECK_GT(sweep.planned, sweep.all / 4);
    }
}

TEST_CASE("extremes: any value of a field among legal ones") {
    check_each(Of::forward, 2);
    check_each(Of::backward, 1);
    check_each(Of::combine, 3);
}

TEST_CASE("extremes: any values of two fields among legal ones") {
    check_two(Of::forward, 6);
    check_two(Of::backward, 2);
    check_two(Of::combine, 20);
}
