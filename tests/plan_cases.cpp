#include "plan_cases.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include <fmt/format.h>

namespace vkattn::test {
namespace {

constexpr uint64_t four_gib_of_floats = uint64_t{1} << 30;

struct Tensor {
    uint64_t heads, seq, dim;
};

VkattnStrides strides_of(Layout layout, uint64_t unit, const Tensor& t) {
    const uint64_t row = (t.dim + unit - 1) / unit * unit;
    switch (layout) {
        case Layout::bshd:
            return {t.seq * t.heads * row, row, t.heads * row};
        case Layout::padded: {
            const uint64_t seq = row + 2 * unit, head = t.seq * seq + 3 * unit;
            return {t.heads * head + 5 * unit, head, seq};
        }
        case Layout::wide: {
            const uint64_t head = std::max(t.seq * row, four_gib_of_floats) + 3 * unit;
            return {t.heads * head, head, row};
        }
        case Layout::broadcast:
            return {0, 0, row};
        default:
            if (row == t.dim) return {VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS};
            return {t.heads * t.seq * row, t.seq * row, row};
    }
}

}  // namespace

const std::vector<HeadDims>& all_head_dims() {
    static const std::vector<HeadDims> dims{{1, 1},     {8, 8},     {40, 40},   {59, 59},   {64, 64},
                                            {72, 72},   {80, 80},   {96, 96},   {111, 111}, {128, 128},
                                            {160, 160}, {256, 256}, {512, 512}, {576, 512}, {576, 576},
                                            {1, 576},   {192, 128}, {64, 257}};
    return dims;
}

const std::vector<Shape>& all_shapes() {
    constexpr uint32_t million = 1u << 20, most = VKATTN_MAX_SEQLEN;
    constexpr int64_t far = int64_t{1} << 31;
    static const std::vector<Shape> shapes{
        {1, 1, 1, 0, 0},
        {1, 1, 1, 1, 1},
        {2, 4, 4, 7, 7, true},
        {0, 8, 8, 97, 97},
        {1, 2, 1, 0, 97},
        {2, 3, 1, 97, 0, true},
        {3, 6, 2, 97, 1025, true},
        {1, 8, 1, 1025, 97, false, 16, -1},
        {2, 16, 16, 1025, 1025, true, 128, 0},
        {1, 32, 8, 1, 65537, false, 4096, 0},
        {1, 2, 2, 65537, 65537},
        {1, 3, 1, 65537, 7, false, -1, 5, VKATTN_ALIGN_TOP_LEFT},
        {1, 1, 1, million, million, true},
        {4, 8, 4, million, 7, true, -1, -1, VKATTN_ALIGN_OFFSET, -3},
        {1, 32, 8, 1, million},
        {1, 1, 1, most, most, true, 1, 1},
        {1, 1, 1, most, 1, true, -1, -1, VKATTN_ALIGN_OFFSET, -far},
        {1, 1, 1, 1, most, false, INT64_MAX, INT64_MAX, VKATTN_ALIGN_OFFSET, far},
        {70000, 1, 1, 7, 97, true},
        {70000, 1, 1, 1025, 1025},
        {1, 65535, 65535, 97, 97},
        {1, 65535, 1, 1, 7},
        {2, 8, 1, 1, 5000},
        {3, 6, 2, 3, 700, true},
        {1, 4, 4, 900, 300},
        {2, 65535, 13107, 1, 1, true, 0, 0},
    };
    return shapes;
}

const std::vector<Features>& all_features() {
    constexpr auto f32 = VKATTN_DTYPE_FLOAT32, f16 = VKATTN_DTYPE_FLOAT16, bf16 = VKATTN_DTYPE_BFLOAT16;
    constexpr auto none = VKATTN_MASK_NONE, boolean = VKATTN_MASK_BOOL, added = VKATTN_MASK_FLOAT;
    constexpr uint64_t giga = 1'000'000'000;
    using M = MaskShape;
    static const std::vector<Features> features{
        {"f16", f16},
        {"bf16", bf16},
        {"f16 bool", f16, boolean, M::whole},
        {"bf16 float", bf16, added, M::shared},
        {"float by head", f32, added, M::all_batches},
        {"float by batch", f32, added, M::all_heads},
        {"bool keys", f32, boolean, M::keys},
        {"f16 keys of batch", f16, added, M::keys_of_batch},
        {"bool queries", f32, boolean, M::queries},
        {"one bool", bf16, boolean, M::one},
        {"few keys", f32, added, M::few_keys},
        {"few heads", f16, added, M::few_heads},
        {"sliding", f32, boolean, M::sliding},
        {"lengths", f32, none, M::whole, true},
        {"f16 lengths, mask", f16, boolean, M::whole, true},
        {"offsets", f32, none, M::whole, false, true},
        {"bf16 offsets, lengths", bf16, none, M::whole, true, true},
        {"2 parts", f32, none, M::whole, false, false, 2},
        {"f16, 5 parts", f16, none, M::whole, false, false, 5},
        {"mask, 300 parts", bf16, added, M::whole, true, false, 300},
        {"1 part", f32, none, M::whole, false, false, 1},
        {"100 Gflop", f32, none, M::whole, false, false, 0, 100 * giga},
        {"f16, 2 Gflop", f16, none, M::whole, false, false, 0, 2 * giga},
        {"mask, 30 Gflop", f32, boolean, M::shared, false, false, 0, 30 * giga},
        {"lengths, 3 parts, 5 Gflop", bf16, none, M::whole, true, false, 3, 5 * giga},
        {"invariant", f32, none, M::whole, false, false, 0, 0, true},
        {"f16 invariant, 20 Gflop", f16, added, M::few_keys, true, false, 0, 20 * giga, true},
        {"bf16 invariant, offsets", bf16, none, M::whole, false, true, 1, 0, true},
    };
    return features;
}

const char* name_of(Layout layout) {
    static constexpr const char* names[] = {"contiguous", "bshd", "padded", "wide", "broadcast"};
    static_assert(std::size(names) == static_cast<size_t>(Layout::count));
    return names[static_cast<size_t>(layout)];
}

VkattnProblem make_problem(HeadDims dims, const Shape& s, Layout layout, uint32_t alignment_bytes,
                           VkattnDtype dtype) {
    VkattnProblem p = core::default_problem();
    p.dtype = dtype;
    p.batch = s.batch;
    p.num_heads_q = s.heads_q;
    p.num_heads_kv = s.heads_kv;
    p.seqlen_q = s.seqlen_q;
    p.seqlen_kv = s.seqlen_kv;
    p.head_dim_qk = dims.qk;
    p.head_dim_v = dims.v;
    p.causal = s.causal;
    p.window_left = s.window_left;
    p.window_right = s.window_right;
    p.align = s.align;
    p.query_offset = s.query_offset;
    p.alignment_bytes = alignment_bytes;
    const uint64_t unit = alignment_bytes / (dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2);
    const Layout of_query = layout == Layout::broadcast ? Layout::contiguous : layout;
    p.query_strides = strides_of(of_query, unit, {s.heads_q, s.seqlen_q, dims.qk});
    p.key_strides = strides_of(layout, unit, {s.heads_kv, s.seqlen_kv, dims.qk});
    p.value_strides = strides_of(layout, unit, {s.heads_kv, s.seqlen_kv, dims.v});
    p.out_strides = strides_of(of_query, unit, {s.heads_q, s.seqlen_q, dims.v});
    return p;
}

void set_mask(VkattnProblem& p, VkattnMaskType mask, MaskShape shape) {
    const uint32_t b = p.batch, h = p.num_heads_q, q = p.seqlen_q, k = p.seqlen_kv;
    const auto set = [&](const std::vector<uint32_t>& extents) {
        p.mask_rank = static_cast<uint32_t>(extents.size());
        std::copy(extents.begin(), extents.end(), p.mask_extents);
    };
    p.mask = mask;
    switch (shape) {
        case MaskShape::all_heads:
            return set({b, 1, q, k});
        case MaskShape::all_batches:
            return set({1, h, q, k});
        case MaskShape::shared:
            return set({q, k});
        case MaskShape::keys:
            return set({k});
        case MaskShape::keys_of_batch:
            return set({b, 1, 1, k});
        case MaskShape::queries:
            return set({h, q, 1});
        case MaskShape::one:
            return set({1});
        case MaskShape::few_keys:
            return set({q, k / 2});
        case MaskShape::few_heads:
            return set({b, h % 3 == 0 ? h / 3 : h % 2 == 0 ? h / 2 : h, q, k});
        case MaskShape::sliding:
            p.mask_strides = {uint64_t{h} * (q + k), uint64_t{q} + k, 1};
            return set({b, h, q, k});
        default:
            return set({b, h, q, k});
    }
}

core::Backward make_backward(const core::Problem& p, bool dlse) {
    VkattnBackward b = core::default_backward();
    const uint64_t unit = std::max(1u, p.alignment_bytes / p.element_bytes);
    const auto like = [&](const VkattnStrides& s, const Tensor& t, VkattnStrides& to) {
        const bool broadcasts =
            (s.batch == 0 && p.batch > 1) || (s.head == 0 && t.heads > 1) || (s.seq == 0 && t.seq > 1);
        to = broadcasts ? strides_of(Layout::contiguous, unit, t) : s;
    };
    b.dlse = dlse;
    b.dsinks = p.sinks;
    b.dbias = p.mask == VKATTN_MASK_FLOAT;
    b.dout_strides = p.out_strides;
    like(p.query_strides, {p.num_heads_q, p.seqlen_q, p.head_dim_qk}, b.dquery_strides);
    like(p.key_strides, {p.num_heads_kv, p.seqlen_kv, p.head_dim_qk}, b.dkey_strides);
    like(p.value_strides, {p.num_heads_kv, p.seqlen_kv, p.head_dim_v}, b.dvalue_strides);
    return resolved(p, b);
}

core::Backward resolved(const core::Problem& problem, const VkattnBackward& backward) {
    const auto result = core::resolve(problem, backward);
    if (!result) throw std::runtime_error(result.failure().field + ": " + result.failure().message);
    return *result;
}

void set_features(VkattnProblem& p, const Features& f) {
    if (f.mask != VKATTN_MASK_NONE) set_mask(p, f.mask, f.mask_shape);
    p.kv_lengths = f.kv_lengths;
    if (f.query_offsets) p.align = VKATTN_ALIGN_OFFSETS;
    if (f.set_more != nullptr) f.set_more(p);
}

core::Options options_of(const Features& f) {
    core::Options o;
    o.num_splits = f.num_splits;
    o.max_dispatch_flops = f.max_dispatch_flops;
    o.batch_invariant = f.batch_invariant;
    return o;
}

bool sees(const VkattnProblem& p, int64_t i, int64_t j, int64_t num_keys, int64_t offset) {
    if (p.align == VKATTN_ALIGN_BOTTOM_RIGHT) offset = num_keys - p.seqlen_q;
    if (p.align == VKATTN_ALIGN_TOP_LEFT) offset = 0;
    if (p.align == VKATTN_ALIGN_OFFSET) offset = p.query_offset;
    const int64_t at = i + offset;  // |at| < 2^33, so distances are exact
    if (j >= num_keys) return false;
    if (p.causal != 0 && j > at) return false;
    if (p.window_left >= 0 && at - j > p.window_left) return false;
    if (p.window_right >= 0 && j - at > p.window_right) return false;
    return true;
}

bool is_heavy(const core::Problem& p) {
    const double band = std::min<double>(p.seqlen_kv, 1.0 + p.bound_hi - p.bound_lo);
    return double(p.batch) * p.num_heads_q * p.seqlen_q * (64 + (p.dynamic_bounds ? p.seqlen_kv : band)) >
           3e9;
}

core::Problem resolved(const VkattnProblem& problem) {
    const auto result = core::resolve(problem);
    if (!result) throw std::runtime_error(result.failure().field + ": " + result.failure().message);
    return *result;
}

std::string to_text(const core::Problem& p) {
    return fmt::format(
        "{} batch {} heads {}:{} seqlens {}x{} dims {}/{} bounds {}..{} alignment {} strides {} {} {} ...",
        core::name_of(p.dtype), p.batch, p.num_heads_q, p.num_heads_kv, p.seqlen_q, p.seqlen_kv,
        p.head_dim_qk, p.head_dim_v, p.bound_lo, p.bound_hi, p.alignment_bytes, p.query_strides.batch,
        p.query_strides.head, p.query_strides.seq);
}

const std::vector<Profile>& profiles() {
    static const std::vector<Profile> all = load_profiles(VKATTN_TESTS_DIR "/profiles");
    return all;
}

const core::DeviceCaps& profile(const std::string& name) {
    for (const Profile& p : profiles())
        if (p.name == name) return p.caps;
    throw std::runtime_error("no profile is named " + name);
}

core::DeviceCaps smallest_device() {
    core::DeviceCaps caps;
    caps.name = "smallest";
    caps.type = core::DeviceType::integrated;
    caps.api_version = core::version_1_2;
    caps.max_shared_bytes = 16384;
    caps.max_invocations = 128;
    caps.max_workgroup_size = {128, 128, 64};
    caps.max_workgroup_count = {65535, 65535, 65535};
    caps.max_push_constant_bytes = 128;
    caps.max_buffer_bytes = uint64_t{1} << 30;
    caps.buffer_device_address = true;
    return caps;
}

const std::vector<Profile>& usable_devices() {
    static const std::vector<Profile> devices = [] {
        std::vector<Profile> usable;
        for (const Profile& p : profiles())
            if (p.caps.buffer_device_address && p.caps.api_version >= core::version_1_2) usable.push_back(p);
        usable.push_back({"smallest", smallest_device()});
        return usable;
    }();
    return devices;
}

const std::vector<Profile>& matrix_devices() {
    static const std::vector<Profile> devices = [] {
        std::vector<Profile> all;
        for (const Profile& p : profiles()) {
            if (!p.caps.buffer_device_address) continue;
            Profile loaded{p.name,
                           load_with_matrix_units(std::filesystem::path(VKATTN_TESTS_DIR "/profiles") /
                                                  (p.name + ".txt"))};
            if (!loaded.caps.matrices.empty()) all.push_back(std::move(loaded));
        }
        return all;
    }();
    return devices;
}

const core::DeviceCaps& matrix_device(const std::string& name) {
    for (const Profile& p : matrix_devices())
        if (p.name == name) return p.caps;
    throw std::runtime_error("no profile with matrix units is named " + name);
}

core::DeviceCaps probed(core::DeviceCaps caps, bool left_alike) {
    for (core::MatrixShape& shape : caps.matrices) {
        // Rows: bits 2, 3, 4 of the invocation, bit 2 of the element; columns: element 0, invocation 0, 1, element 1.
        shape.layout = 0x9108a432;
        shape.left_alike = left_alike && shape.n == shape.k;
    }
    return caps;
}

core::DeviceCaps probed_turned(core::DeviceCaps caps, bool exchanges) {
    for (core::MatrixShape& shape : caps.matrices) {
        if (shape.m != shape.n || shape.n != shape.k) continue;
        // Columns: bits 0 .. 3 of the invocation; rows: bits 0 .. 2 of the element and bit 4 of the invocation, which
        // is row bit 3 on RDNA4, and bit 0 on RDNA3. A query is a column, a key is a row.
        shape.layout = exchanges ? 0x3210a984 : 0x32104a98;
        shape.left_alike = false;
        shape.turned_layout = 0x4a983210;
        shape.exchanges = exchanges;
    }
    return caps;
}

}  // namespace vkattn::test
