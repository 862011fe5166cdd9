#include "cases.hpp"

#include "array_fill.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "storage.hpp"

namespace vkattn::test {
namespace {

// Words that shape the tensors, but are no fields of a problem.
struct Shape {
    Layout layout = Layout::bhsd;
    uint64_t pad = 0;
    // "batch,head,seq" of query, key, value and out, then of dquery, dkey, dvalue and dout; "" = by the layout
    std::string strides[8];
    std::optional<Layout> gradients;
    std::string mask_strides;
    bool random_map = false;
    VkattnScales scales = VKATTN_SCALES_NONE;  // of key and value, where they are single bytes
};

struct Line {
    Case result;
    Shape shape;
    std::string where;

    [[noreturn]] void fail(const std::string& what) const { throw CaseError(where + ": " + what); }

    template <class T>
    T number(std::string_view text) const {
        T value{};
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc{} || end != text.data() + text.size())
            fail(fmt::format("'{}' is no such number", text));
        return value;
    }

    template <class T>
    std::vector<T> numbers(std::string_view text) const {
        std::vector<T> values;
        for (size_t begin = 0; begin <= text.size();) {
            const size_t comma = std::min(text.find(',', begin), text.size());
            values.push_back(number<T>(text.substr(begin, comma - begin)));
            begin = comma + 1;
        }
        return values;
    }

    template <class T>
    std::vector<T> numbers(std::string_view text, size_t count) const {
        const auto values = numbers<T>(text);
        if (values.size() != count) fail(fmt::format("'{}' is not {} numbers", text, count));
        return values;
    }

    template <class T>
    T one_of(std::string_view text, const std::vector<std::pair<const char*, T>>& choices) const {
        std::string names;
        for (const auto& [name, value] : choices) {
            if (text == name) return value;
            names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
        }
        fail(fmt::format("'{}' is none of {}", text, names));
    }
};

using Value = std::string_view;
using Setter = std::function<void(Line&, Value)>;

Case& owner_of(Line& l, const Case*) {
    return l.result;
}
VkattnProblem& owner_of(Line& l, const VkattnProblem*) {
    return l.result.problem;
}

// A word that is a number, or one of some names.
template <class Owner, class T>
Setter field(T Owner::*member) {
    return [member](Line& l, Value v) { owner_of(l, static_cast<Owner*>(nullptr)).*member = l.number<T>(v); };
}
template <class Owner, class T>
Setter field(T Owner::*member, std::vector<std::pair<const char*, T>> choices) {
    return [member, choices](Line& l, Value v) {
        owner_of(l, static_cast<Owner*>(nullptr)).*member = l.one_of<T>(v, choices);
    };
}
template <class Owner>
Setter dtype(VkattnDtype Owner::*member) {
    return field(
        member,
        {{"f32", VKATTN_DTYPE_FLOAT32}, {"f16", VKATTN_DTYPE_FLOAT16}, {"bf16", VKATTN_DTYPE_BFLOAT16}});
}
// Sets the type of key or value, which may be one of blocks.
Setter kept_dtype(VkattnDtype VkattnProblem::*member) {
    return [member](Line& l, Value v) {
        for (int type = VKATTN_DTYPE_Q8_0; type <= VKATTN_DTYPE_FLOAT8_E5M2; type++)
            if (v == name_of(static_cast<VkattnDtype>(type))) {
                l.result.problem.*member = static_cast<VkattnDtype>(type);
                return;
            }
        dtype(member)(l, v);
    };
}

void set_blocks(Line& l, Value v) {
    const auto both = l.numbers<uint32_t>(v, 2);
    l.result.problem.block_rows = both[0];
    l.result.problem.block_keys = both[1];
}

void set_window(Line& l, Value v) {
    const auto both = l.numbers<int64_t>(v, 2);
    l.result.problem.window_left = both[0];
    l.result.problem.window_right = both[1];
}

void set_mask_shape(Line& l, Value v) {
    const auto extents = l.numbers<uint32_t>(v);
    if (extents.size() > 4) l.fail(fmt::format("'{}' has more than 4 extents", v));
    l.result.problem.mask_rank = static_cast<uint32_t>(extents.size());
    std::copy(extents.begin(), extents.end(), l.result.problem.mask_extents);
}

Setter array_of(const OptionalArray& array) {
    return [&](Line& l, Value v) {
        const auto read = [&]<class T>(std::vector<T> CaseArrays::*at) { l.result.*at = l.numbers<T>(v); };
        std::visit(read, array.values);
        array.ask(l.result.problem);
    };
}

Setter strides(int tensor) {
    return [tensor](Line& l, Value v) { l.shape.strides[tensor] = std::string(v); };
}

void set_both(Line& l, Value v, uint32_t VkattnProblem::*a, uint32_t VkattnProblem::*b) {
    l.result.problem.*a = l.result.problem.*b = l.number<uint32_t>(v);
}

using Setters = std::map<std::string, Setter, std::less<>>;

Setters make_words() {
    using P = VkattnProblem;
    Setters all = {
        {"b", field(&P::batch)},
        {"h", [](Line& l, Value v) { set_both(l, v, &P::num_heads_q, &P::num_heads_kv); }},
        {"hq", field(&P::num_heads_q)},
        {"hkv", field(&P::num_heads_kv)},
        {"s", [](Line& l, Value v) { set_both(l, v, &P::seqlen_q, &P::seqlen_kv); }},
        {"sq", field(&P::seqlen_q)},
        {"skv", field(&P::seqlen_kv)},
        {"d", [](Line& l, Value v) { set_both(l, v, &P::head_dim_qk, &P::head_dim_v); }},
        {"dqk", field(&P::head_dim_qk)},
        {"dv", field(&P::head_dim_v)},
        {"scale", field(&P::softmax_scale)},
        {"softcap", field(&P::softcap)},
        {"window", set_window},
        {"align", field(&P::align, {{"bottom-right", VKATTN_ALIGN_BOTTOM_RIGHT},
                                    {"top-left", VKATTN_ALIGN_TOP_LEFT},
                                    {"offset", VKATTN_ALIGN_OFFSET}})},
        {"offset", field(&P::query_offset)},
        {"align_bytes", field(&P::alignment_bytes)},
        {"dtype", dtype(&P::dtype)},
        {"kt", kept_dtype(&P::key_dtype)},
        {"vt", kept_dtype(&P::value_dtype)},
        {"ot", dtype(&P::out_dtype)},
        {"mt", dtype(&P::mask_dtype)},
        {"precision",
         field(&Case::precision, {{"f16", VKATTN_PRECISION_FLOAT16}, {"bf16", VKATTN_PRECISION_BFLOAT16}})},
        {"parts", field(&Case::num_parts)},
        {"parts_dtype", dtype(&Case::parts_dtype)},
        {"mask", field(&P::mask, {{"bool", VKATTN_MASK_BOOL}, {"float", VKATTN_MASK_FLOAT}})},
        {"mask_shape", set_mask_shape},
        {"slopes_of", field(&P::slopes_apply, {{"distance", VKATTN_SLOPES_APPLY_DISTANCE},
                                               {"mask", VKATTN_SLOPES_APPLY_MASK}})},
        {"blocks", set_blocks},
        {"map_heads", field(&P::block_map_heads)},
        {"map_batches", field(&P::block_map_batches)},
        {"mask_fill", field(&Case::mask_fill, {{"random", MaskFill::random},
                                               {"banded", MaskFill::banded},
                                               {"rows", MaskFill::rows},
                                               {"tail", MaskFill::tail},
                                               {"lowest", MaskFill::lowest},
                                               {"far", MaskFill::far}})},
        {"layout",
         [](Line& l, Value v) {
             l.shape.layout = l.one_of<Layout>(v, {{"bhsd", Layout::bhsd}, {"bshd", Layout::bshd}});
         }},
        {"pad", [](Line& l, Value v) { l.shape.pad = l.number<uint64_t>(v); }},
        {"qs", strides(0)},
        {"ks", strides(1)},
        {"vs", strides(2)},
        {"os", strides(3)},
        {"dqs", strides(4)},
        {"dks", strides(5)},
        {"dvs", strides(6)},
        {"dos", strides(7)},
        {"grads",
         [](Line& l, Value v) {
             l.shape.gradients = l.one_of<Layout>(v, {{"bhsd", Layout::bhsd}, {"bshd", Layout::bshd}});
         }},
        {"ms", [](Line& l, Value v) { l.shape.mask_strides = std::string(v); }},
        {"kernel", [](Line& l, Value v) { l.result.kernel = std::string(v); }},
        {"tuning", [](Line& l, Value v) { l.result.tuning = std::string(v); }},
        {"max_scratch", field(&Case::max_scratch_bytes)},
        {"max_flops", field(&Case::max_dispatch_flops)},
        {"splits", field(&Case::num_splits)},
        {"seed", field(&Case::seed)},
        {"values", field(&Case::values, {{"normal", Values::normal},
                                         {"large", Values::large},
                                         {"huge", Values::huge},
                                         {"equal", Values::equal},
                                         {"ascending", Values::ascending},
                                         {"descending", Values::descending},
                                         {"spike", Values::spike},
                                         {"quarters", Values::quarters},
                                         {"limit", Values::limit},
                                         {"channel", Values::channel}})},
        {"far", field(&Case::far, {{"batch", Far::batch},
                                   {"head", Far::head},
                                   {"row", Far::row},
                                   {"part", Far::part},
                                   {"lse", Far::lse}})},
        {"company", field(&Case::company)},
        {"scales",
         [](Line& l, Value v) {
             l.shape.scales = l.one_of<VkattnScales>(v, {{"one", VKATTN_SCALES_ONE},
                                                         {"heads", VKATTN_SCALES_PER_HEAD},
                                                         {"rows", VKATTN_SCALES_PER_ROW}});
         }},
    };
    for (const OptionalArray& array : optional_arrays) all.emplace(array.word, array_of(array));
    return all;
}

const Setters& words() {
    static const Setters all = make_words();
    return all;
}

const std::map<std::string, void (*)(Line&), std::less<>>& flags() {
    static const std::map<std::string, void (*)(Line&), std::less<>> all = {
        {"causal", [](Line& l) { l.result.problem.causal = 1; }},
        {"batch_invariant", [](Line& l) { l.result.batch_invariant = true; }},
        {"slopes_per_batch", [](Line& l) { l.result.problem.slopes = VKATTN_SLOPES_PER_BATCH; }},
        {"random_map",
         [](Line& l) {
             l.result.problem.block_map = 1;
             l.shape.random_map = true;
         }},
        {"value_in_key", [](Line& l) { l.result.problem.value_in_key = 1; }},
        {"no_lse", [](Line& l) { l.result.lse = false; }},
        {"dlse", [](Line& l) { l.result.dlse = true; }},
        {"no_dbias", [](Line& l) { l.result.dbias = false; }},
        {"nonfinite", [](Line& l) { l.result.nonfinite = true; }},
    };
    return all;
}

void read_word(Line& line, std::string_view word) {
    const size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    if (equals == word.npos) {
        const auto flag = flags().find(name);
        if (flag == flags().end())
            line.fail(words().contains(name) ? fmt::format("'{}' needs a value", name)
                                             : fmt::format("unknown word '{}'", name));
        flag->second(line);
        return;
    }
    const auto setter = words().find(name);
    if (setter == words().end())
        line.fail(flags().contains(name) ? fmt::format("'{}' takes no value", name)
                                         : fmt::format("unknown word '{}'", name));
    setter->second(line, word.substr(equals + 1));
}

// Strides of which each but 1 is a multiple of `unit`, with `pad` elements to spare.
VkattnStrides strides_by(Layout layout, const Extents& of, uint64_t pad, uint64_t unit) {
    const auto padded = [&](uint64_t n) { return (n + pad + unit - 1) / unit * unit; };
    const uint64_t row = padded(of.dim);
    VkattnStrides s{};
    if (layout == Layout::bshd) {
        s.head = row;
        s.seq = padded(of.heads * row);
        s.batch = padded(of.rows * s.seq);
    } else {
        s.seq = row;
        s.head = padded(of.rows * row);
        s.batch = padded(of.heads * s.head);
    }
    return s;
}

// Strides by layout and padding; contiguous ones stay the library's default, which is thereby tested too.
void set_strides(Line& line) {
    VkattnProblem& p = line.result.problem;
    const Shape& shape = line.shape;
    for (int t = 0; t < 8; t++) {
        const bool of_gradient = t >= 4;
        const VkattnDtype dtype = dtype_of(p, t % 4);
        const uint64_t element = element_bytes(dtype),
                       unit = blocks_of(dtype) != nullptr
                                  ? oracle::block_elements
                                  : std::max<uint64_t>(p.alignment_bytes, element) / element;
        const Extents extents = extents_of(p, t % 4);
        std::optional<VkattnStrides> strides;
        if (!shape.strides[t].empty()) {
            const auto given = line.numbers<uint64_t>(shape.strides[t], 3);
            strides = {given[0], given[1], given[2]};
        } else if (of_gradient && shape.gradients) {
            strides = strides_by(*shape.gradients, extents, shape.pad + 1, unit);
        } else if (!of_gradient && (shape.layout == Layout::bshd || shape.pad != 0 || unit > 1)) {
            strides = strides_by(shape.layout, extents, shape.pad, unit);
        }
        if (of_gradient)
            line.result.gradient_strides[t - 4] = strides;
        else if (strides)
            strides_of(p, t) = *strides;
    }
    if (shape.mask_strides.empty()) return;
    const auto given = line.numbers<uint64_t>(shape.mask_strides, 3);
    p.mask_strides = {given[0], given[1], given[2]};
}

// What single words cannot know.
void check_whole(const Line& line) {
    const Case& c = line.result;
    const VkattnProblem& p = c.problem;
    for (const OptionalArray& array : optional_arrays)
        if (const size_t given = count_of(c, array); given != 0 && given != array.count(p))
            line.fail(fmt::format("{} {} where there are {}", given, array.word, array.count(p)));
    if ((p.align == VKATTN_ALIGN_OFFSETS) == c.query_offsets.empty()) line.fail("offsets exclude align");
    if ((p.mask == VKATTN_MASK_NONE) != (p.mask_rank == 0)) line.fail("mask and mask_shape go together");
    if (p.mask == VKATTN_MASK_NONE && !line.shape.mask_strides.empty()) line.fail("ms is of masks");
    if (p.mask != VKATTN_MASK_FLOAT)
        for (const auto& [name, fill] : {std::pair{"lowest", MaskFill::lowest}, {"far", MaskFill::far}})
            if (c.mask_fill == fill) line.fail(fmt::format("mask_fill={} is of float masks", name));
}

// Strides with which the elements of an output would share addresses.
bool broadcasts(const VkattnStrides& s) {
    return s.batch == 0 || s.head == 0 || s.seq == 0;
}

bool has_plain_layout(const Line& line) {
    const Shape& shape = line.shape;
    return shape.layout == Layout::bhsd && shape.pad == 0 && shape.strides[3].empty() &&
           line.result.problem.alignment_bytes == vkattn::problem().alignment_bytes;
}

// Such a case looks at the rows of its last 32 batches, which a segment or two must write, and not much more.
void check_far_lse(const Line& line) {
    const Case& c = line.result;
    const VkattnProblem& p = c.problem;
    if (p.batch < far_lse_batches || uint64_t{p.batch} * p.num_heads_q <= uint64_t{1} << 30)
        line.fail("far=lse needs 32 batches, and more than 2^30 heads in all of them");
    if (p.seqlen_q != 1 || p.num_heads_q != p.num_heads_kv || p.num_heads_q > 64 || p.head_dim_v > 8 ||
        c.num_splits != 1 || c.max_dispatch_flops == 0 || !c.lse)
        line.fail("far=lse needs sq=1, h of 64 at most, dv of 8 at most, splits=1, max_flops and lse");
    for (size_t t = 0; t < 3; t++)
        if (!line.shape.strides[t].starts_with("0,"))
            line.fail("far=lse needs qs, ks and vs of 0 for the batches");
    if (!has_plain_layout(line)) line.fail("far=lse excludes pad, layout, os and align_bytes");
    if (p.mask != VKATTN_MASK_NONE || c.nonfinite) line.fail("far=lse excludes a mask and nonfinite");
    for (const OptionalArray& array : optional_arrays)
        if (count_of(c, array) != 0) line.fail(fmt::format("far=lse excludes {}", array.word));
}

void check_far(const Line& line) {
    const VkattnProblem& p = line.result.problem;
    const Far far = line.result.far;
    if (far == Far::none) return;
    if (far == Far::lse) return check_far_lse(line);
    const bool two = far == Far::part    ? line.result.num_parts == 2
                     : far == Far::batch ? p.batch == 2
                     : far == Far::head  ? p.num_heads_q == 2 && p.num_heads_kv == 2
                                         : p.seqlen_q == 2 && p.seqlen_kv == 2;
    if (!two) line.fail("far needs two of its dimension");
    const Shape& shape = line.shape;
    if (shape.layout != Layout::bhsd || shape.pad != 0 ||
        std::ranges::any_of(shape.strides, [](const std::string& s) { return !s.empty(); }))
        line.fail("far excludes other strides");
    if (p.mask != VKATTN_MASK_NONE || line.result.nonfinite) line.fail("far excludes a mask and nonfinite");
    for (const OptionalArray& array : optional_arrays)
        if (count_of(line.result, array) != 0) line.fail(fmt::format("far excludes {}", array.word));
    if (line.result.max_dispatch_flops != 0) line.fail("far excludes max_flops");
}

// Elements are replaced at the fourth key at most, and results are looked at by their rows.
void check_nonfinite(const Line& line) {
    const VkattnProblem& p = line.result.problem;
    if (line.result.nonfinite && line.result.num_parts > 1 && !line.result.lse)
        line.fail("nonfinite needs lse");
    if (line.result.num_parts > 1) return;  // a combine has no keys
    if (line.result.nonfinite && (p.batch == 0 || p.seqlen_q == 0 || p.seqlen_kv < 4 || !line.result.lse))
        line.fail("nonfinite needs a batch, a row, four keys and lse");
    if (line.result.nonfinite && p.value_in_key != 0) line.fail("nonfinite excludes value_in_key");
}

// Their means are exact, and a quarter, a half or three quarters of the way from one number to the next.
void check_quarters(const Line& line) {
    const VkattnProblem& p = line.result.problem;
    if (line.result.values != Values::quarters) return;
    const bool hides = p.mask != VKATTN_MASK_NONE || p.causal != 0 || p.window_left != -1 ||
                       p.window_right != -1 || !line.result.kv_lengths.empty();
    if (p.seqlen_kv != 4 || p.softmax_scale != 0 || hides)
        line.fail("values=quarters needs skv=4 and scale=0, and nothing that hides a key");
}

// Rows that come before others must not change what these see, nor where they lie.
void check_company(const Line& line) {
    const Case& c = line.result;
    if (c.company == 0) return;
    if (c.company > 65536) line.fail("company is at most 65536");
    const bool is_plain = c.problem.mask == VKATTN_MASK_NONE &&
                          c.problem.align == VKATTN_ALIGN_BOTTOM_RIGHT && c.kv_lengths.empty() &&
                          c.query_offsets.empty() && c.far == Far::none && !c.nonfinite;
    const bool has_strides =
        std::ranges::any_of(line.shape.strides, [](const std::string& given) { return !given.empty(); });
    if (!c.batch_invariant || !c.lse || !is_plain)
        line.fail(
            "company needs batch_invariant and lse, and excludes masks, align, lengths, far and nonfinite");
    if (has_strides || !has_plain_layout(line))
        line.fail("company excludes pad, layout, strides and align_bytes");
}

std::string_view without_comment(std::string_view line) {
    return line.substr(0, line.find('#'));
}

std::vector<std::string_view> split(std::string_view line) {
    constexpr const char* blank = " \t\r";
    std::vector<std::string_view> all;
    for (size_t at = line.find_first_not_of(blank); at != line.npos;) {
        const size_t end = std::min(line.find_first_of(blank, at), line.size());
        all.push_back(line.substr(at, end - at));
        at = line.find_first_not_of(blank, end);
    }
    return all;
}

}  // namespace

Extents extents_of(const VkattnProblem& p, int tensor) {
    const bool of_query = tensor == 0 || tensor == 3;
    return {of_query ? p.num_heads_q : p.num_heads_kv, of_query ? p.seqlen_q : p.seqlen_kv,
            tensor < 2 ? p.head_dim_qk : p.head_dim_v};
}

VkattnStrides& strides_of(VkattnProblem& p, int tensor) {
    VkattnStrides* const all[] = {&p.query_strides, &p.key_strides, &p.value_strides, &p.out_strides};
    return *all[tensor];
}

VkattnDtype dtype_of(const VkattnProblem& p, int tensor) {
    const VkattnDtype all[] = {p.dtype, p.key_dtype, p.value_in_key != 0 ? p.key_dtype : p.value_dtype,
                               p.out_dtype};
    return all[tensor] == VKATTN_DTYPE_SAME ? p.dtype : all[tensor];
}

VkattnDtype mask_dtype_of(const VkattnProblem& p) {
    return p.mask_dtype == VKATTN_DTYPE_SAME ? p.dtype : p.mask_dtype;
}

uint64_t mask_count(const VkattnProblem& p) {
    uint64_t count = p.mask_rank == 0 ? 0 : 1;
    for (uint32_t i = 0; i < p.mask_rank; i++) count *= p.mask_extents[i];
    return count;
}

VkattnBackward backward_of(const Case& c) {
    VkattnBackward b = backward();
    b.dlse = c.dlse;
    b.dsinks = c.problem.sinks;
    b.dbias = c.dbias && c.problem.mask == VKATTN_MASK_FLOAT && mask_count(c.problem) != 0;
    VkattnProblem lies = c.problem;
    VkattnStrides* const strides[] = {&b.dquery_strides, &b.dkey_strides, &b.dvalue_strides, &b.dout_strides};
    for (int t = 0; t < 4; t++) {
        const VkattnStrides& like = strides_of(lies, t);
        if (c.gradient_strides[t])
            *strides[t] = *c.gradient_strides[t];
        else if (t == 3 || !broadcasts(like))
            *strides[t] = like;
    }
    return b;
}

bool is_strided(Far far) {
    return far == Far::batch || far == Far::head || far == Far::row;
}

Case parse_case(std::string_view text, const std::string& where) {
    Line line;
    line.where = line.result.where = where;
    line.result.text = std::string(text);
    line.result.problem.head_dim_qk = line.result.problem.head_dim_v = 8;
    for (const std::string_view word : split(text)) read_word(line, word);
    if (line.shape.random_map) fill_map(line.result);
    if (line.shape.scales != VKATTN_SCALES_NONE) fill_scales(line.result, line.shape.scales);
    check_whole(line);
    check_far(line);
    check_nonfinite(line);
    check_quarters(line);
    check_company(line);
    set_strides(line);
    constexpr uint64_t example_bytes = uint64_t{5} << 30;  // for whoever asks for the plan alone
    if (is_strided(line.result.far)) set_far_strides(line.result, example_bytes);
    return line.result;
}

void set_far_strides(Case& c, uint64_t bytes) {
    VkattnProblem& p = c.problem;
    for (int t = 0; t < 4; t++) {
        const auto& [heads, rows, dim] = extents_of(p, t);
        VkattnStrides& s = strides_of(p, t);
        s = {heads * rows * dim, rows * dim, dim};
        (c.far == Far::batch  ? s.batch
         : c.far == Far::head ? s.head
                              : s.seq) = bytes / element_bytes(p.dtype);
    }
}

std::vector<Section> parse_cases(std::string_view text, const std::string& file) {
    std::vector<Section> sections;
    for (size_t number = 1, begin = 0; begin < text.size(); number++) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        const std::string_view line = without_comment(text.substr(begin, end - begin));
        const std::string where = fmt::format("{}:{}", file, number);
        begin = end + 1;
        const auto parts = split(line);
        if (parts.empty()) continue;
        if (parts.front().front() == '[') {
            const size_t open = line.find('['), close = line.find(']');
            if (close == line.npos) throw CaseError(where + ": ']' is missing");
            sections.push_back({std::string(line.substr(open + 1, close - open - 1)), {}});
        } else {
            if (sections.empty()) throw CaseError(where + ": a case before the first [section]");
            const size_t first = static_cast<size_t>(parts.front().data() - line.data());
            const size_t last = static_cast<size_t>(parts.back().data() + parts.back().size() - line.data());
            sections.back().cases.push_back(parse_case(line.substr(first, last - first), where));
        }
    }
    return sections;
}

VkattnOptions Case::options() const {
    VkattnOptions o = vkattn::options();
    o.kernel = kernel.c_str();
    o.tuning = tuning.empty() ? nullptr : tuning.c_str();
    o.max_scratch_bytes = max_scratch_bytes;
    o.max_dispatch_flops = max_dispatch_flops;
    o.num_splits = num_splits;
    o.batch_invariant = batch_invariant ? 1 : 0;
    o.precision = precision;
    return o;
}

std::string Case::pipeline_key() const {
    const auto wide = [&](const VkattnStrides& s) {
        for (const uint64_t x : {s.batch, s.head, s.seq})
            if (x != VKATTN_CONTIGUOUS && x > UINT32_MAX / 4) return true;
        return false;
    };
    const bool wide_strides = wide(problem.query_strides) || wide(problem.key_strides) ||
                              wide(problem.value_strides) || wide(problem.out_strides);
    std::string types = name_of(problem.dtype);
    for (int t = 1; t < 4; t++) types += fmt::format(",{}", name_of(dtype_of(problem, t)));
    if (problem.value_in_key != 0) types += ",in key";
    return fmt::format("{} {} {} {} {} {} {}{}{}{}{}", kernel, tuning, types, static_cast<int>(precision),
                       static_cast<int>(problem.mask), problem.head_dim_qk, problem.head_dim_v,
                       problem.alignment_bytes >= 16 ? " aligned" : "", wide_strides ? " wide" : "",
                       problem.softcap > 0 ? " capped" : "", batch_invariant ? " invariant" : "");
}

oracle::Problem oracle_problem(const Case& c) {
    const VkattnProblem& p = c.problem;
    oracle::Problem o;
    o.batch = p.batch;
    o.num_heads_q = p.num_heads_q;
    o.num_heads_kv = p.num_heads_kv;
    o.seqlen_q = p.seqlen_q;
    o.seqlen_kv = p.seqlen_kv;
    o.head_dim_qk = p.head_dim_qk;
    o.head_dim_v = p.head_dim_v;
    o.softmax_scale = std::isnan(p.softmax_scale) ? 1 / std::sqrt(static_cast<double>(p.head_dim_qk))
                                                  : static_cast<double>(p.softmax_scale);
    o.softcap = static_cast<double>(p.softcap);
    o.causal = p.causal != 0;
    // Wider than any sequence is as wide as any; the oracle adds positions to it.
    o.window_left = std::min(p.window_left, widest_window);
    o.window_right = std::min(p.window_right, widest_window);
    o.alignment = p.align == VKATTN_ALIGN_TOP_LEFT       ? oracle::Alignment::top_left
                  : p.align == VKATTN_ALIGN_BOTTOM_RIGHT ? oracle::Alignment::bottom_right
                                                         : oracle::Alignment::given;
    if (p.align == VKATTN_ALIGN_OFFSET) o.query_offset = {p.query_offset};
    for (const OptionalArray& array : optional_arrays) array.tell(c, p, o);
    return o;
}

}  // namespace vkattn::test
