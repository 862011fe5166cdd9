#include "workload.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>

#include "block_maps.hpp"
#include "common.hpp"
#include "interruption.hpp"
#include "progress.hpp"

namespace vkattn::tools {
namespace {

constexpr uint64_t rotate_bytes = uint64_t{256} << 20;  // several times any last-level cache
constexpr uint64_t most_bytes = uint64_t{8} << 30;      // of all sets, where few of their keys are valid
constexpr double settled = 0.98;                        // of the time before: clocks rise no more
constexpr double most_warming = 6;                      // times what was asked for
constexpr double block_ms = 40;                         // of runs in one submission
constexpr double most_runs_in_block = 1000;
constexpr int most_blocks = 1000;  // of a warm-up, by whatever clock

// A buffer of `bytes` that repeats `block`.
Buffer repeat(Runtime& runtime, uint64_t bytes, std::span<const std::byte> block) {
    Buffer b = runtime.allocate(bytes);
    for (uint64_t done = 0; done < bytes; done += block.size())
        runtime.upload(b, block.first(std::min<uint64_t>(block.size(), bytes - done)), done);
    return b;
}

constexpr uint64_t random_elements = 1 << 22;  // more are repeated

// Never zeros: they can run faster than real data.
Buffer random_buffer(Runtime& runtime, uint64_t elements, VkattnDtype dtype, uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<float> values(std::min(elements, random_elements));
    for (float& x : values) x = static_cast<float>(engine()) * 0x1p-31f - 1.0f;
    if (const oracle::BlockType* const blocks = blocks_of(dtype)) {
        std::vector<double> wide(values.begin(), values.end());
        if (dtype == VKATTN_DTYPE_INT8)
            for (double& x : wide) x *= 127;
        return repeat(runtime, bytes_of(dtype, elements), oracle::quantise(*blocks, wide));
    }
    const NpyArray block = from_float(values, {values.size()}, npy_dtype(dtype));
    return repeat(runtime, elements * element_bytes(dtype), block.data);
}

// Hides nothing, or half of it.
Buffer mask_buffer(Runtime& runtime, const VkattnProblem& p, bool random) {
    uint64_t elements = p.mask == VKATTN_MASK_NONE ? 0 : 1;
    for (uint32_t i = 0; i < p.mask_rank; i++) elements *= p.mask_extents[i];
    const size_t count = std::min(elements, random_elements);
    std::mt19937 engine(1);
    std::vector<float> added(count);
    std::vector<std::byte> visible(count, std::byte{1});
    for (size_t i = 0; random && i < count; i++) {
        if (engine() % 2 == 0) continue;
        added[i] = -std::numeric_limits<float>::infinity();
        visible[i] = std::byte{0};
    }
    if (p.mask == VKATTN_MASK_BOOL) return repeat(runtime, elements, visible);
    const VkattnDtype dtype = dtype_of(p, p.mask_dtype);
    const NpyArray block = from_float(added, {count}, npy_dtype(dtype));
    return repeat(runtime, elements * element_bytes(dtype), block.data);
}

// An array that the problem has: of num_keys as lengths, the slopes of the paper, 1/128 as scales, and otherwise zeros.
Buffer array_buffer(Runtime& runtime, const VkattnProblem& p, ArrayName name, uint32_t num_keys,
                    const std::string& block_map) {
    if (name == ArrayName::block_map) {
        const std::vector<uint8_t> map = make_map(block_map, p);
        return repeat(runtime, map.size(), std::as_bytes(std::span(map)));
    }
    const std::vector<uint64_t> extents = ArrayOption::all()[static_cast<size_t>(name)].extents(p);
    uint64_t elements = 1;
    for (const uint64_t extent : extents) elements *= extent;
    std::vector<uint32_t> words(elements);
    for (size_t i = 0; i < words.size(); i++) {
        const float share = static_cast<float>(i % p.num_heads_q + 1) / static_cast<float>(p.num_heads_q);
        if (name == ArrayName::kv_lengths) words[i] = num_keys;
        if (name == ArrayName::slopes) words[i] = std::bit_cast<uint32_t>(std::exp2(-8 * share));
        if (name == ArrayName::key_scales || name == ArrayName::value_scales)
            words[i] = std::bit_cast<uint32_t>(0x1p-7f);
    }
    return repeat(runtime, words.size() * sizeof(uint32_t), std::as_bytes(std::span(words)));
}

// Query-key pairs that are visible in one head: what must be computed.
double visible_pairs(const VkattnProblem& p) {
    const int64_t q = p.seqlen_q, kv = p.seqlen_kv;
    const int64_t offset = p.align == VKATTN_ALIGN_TOP_LEFT ? 0
                           : p.align == VKATTN_ALIGN_OFFSET ? p.query_offset
                                                            : kv - q;
    double pairs = 0;
    for (int64_t i = 0; i < q; i++) {
        const int64_t at = i + offset;
        int64_t begin = 0, end = kv;
        if (p.window_left >= 0) begin = std::max(begin, at - p.window_left);
        if (p.window_right >= 0) end = std::min(end, at + p.window_right + 1);
        if (p.causal != 0) end = std::min(end, at + 1);
        pairs += static_cast<double>(std::max<int64_t>(0, end - begin));
    }
    return pairs;
}

}  // namespace

double tflops(const VkattnProblem& p, Pass pass, double ms) {
    const double forward = p.head_dim_qk + p.head_dim_v, backward = 3 * p.head_dim_qk + 2 * p.head_dim_v;
    const double dims = (pass != Pass::backward ? forward : 0) + (pass != Pass::forward ? backward : 0);
    return 2.0 * p.batch * p.num_heads_q * visible_pairs(p) * dims / (ms * 1e-3) * 1e-12;
}

uint64_t tensor_bytes(const VkattnProblem& p) {
    const auto rows = [&](uint32_t dim) { return element_count(p.batch, p.num_heads_q, p.seqlen_q, dim); };
    const auto keys = [&](uint32_t dim) { return element_count(p.batch, p.num_heads_kv, p.seqlen_kv, dim); };
    return bytes_of(p.dtype, rows(p.head_dim_qk)) + bytes_of(dtype_of(p, p.out_dtype), rows(p.head_dim_v)) +
           bytes_of(dtype_of(p, p.key_dtype), keys(p.head_dim_qk)) +
           (p.value_in_key != 0 ? 0 : bytes_of(dtype_of(p, p.value_dtype), keys(p.head_dim_v)));
}

Workload::Tensors Workload::make_tensors(const VkattnProblem& p, uint32_t seed) const {
    const uint64_t rows = element_count(p.batch, p.num_heads_q, p.seqlen_q, 1),
                   keys = element_count(p.batch, p.num_heads_kv, p.seqlen_kv, 1);
    Tensors t;
    t.query = random_buffer(runtime_, rows * p.head_dim_qk, p.dtype, seed);
    t.key = random_buffer(runtime_, keys * p.head_dim_qk, dtype_of(p, p.key_dtype), seed + 1);
    if (p.value_in_key == 0)
        t.value = random_buffer(runtime_, keys * p.head_dim_v, dtype_of(p, p.value_dtype), seed + 2);
    t.out = runtime_.allocate(rows * p.head_dim_v * element_bytes(dtype_of(p, p.out_dtype)));
    t.lse = runtime_.allocate(rows * sizeof(float));
    if (pass_ == Pass::forward) return t;
    t.dout = random_buffer(runtime_, rows * p.head_dim_v, dtype_of(p, p.out_dtype), seed + 3);
    t.dquery = runtime_.allocate(rows * p.head_dim_qk * element_bytes(p.dtype));
    t.dkey = runtime_.allocate(keys * p.head_dim_qk * element_bytes(dtype_of(p, p.key_dtype)));
    t.dvalue = runtime_.allocate(keys * p.head_dim_v * element_bytes(dtype_of(p, p.value_dtype)));
    return t;
}

Workload::Workload(Runtime& runtime, const VkattnProblem& p, Pass pass, bool random_mask, uint32_t num_keys,
                   const std::string& block_map)
    : runtime_(runtime), pass_(pass), mask_(mask_buffer(runtime, p, random_mask)) {
    VkattnProblem moved = p;
    moved.seqlen_kv = num_keys;
    const uint64_t sets = std::min(rotate_bytes / std::max<uint64_t>(tensor_bytes(moved), 1),
                                   most_bytes / std::max<uint64_t>(tensor_bytes(p), 1));
    const auto count = static_cast<uint32_t>(std::clamp<uint64_t>(sets, 1, 16));
    Phase phase("making and uploading tensors", count);
    for (uint32_t i = 0; i < count; i++, phase.advance()) tensors_.push_back(make_tensors(p, 4 * i + 1));
    for (size_t i = 0; i < num_arrays; i++)
        if (ArrayOption::all()[i].asked(p))
            arrays_[i] = array_buffer(runtime, p, static_cast<ArrayName>(i), num_keys, block_map);
    if (p.sinks != 0) dsinks_ = runtime.allocate(p.num_heads_q * sizeof(float));
    if (pass == Pass::forward || p.mask != VKATTN_MASK_FLOAT) return;
    uint64_t elements = 1;
    for (uint32_t i = 0; i < p.mask_rank; i++) elements *= p.mask_extents[i];
    dbias_ = runtime.allocate(elements * element_bytes(dtype_of(p, p.mask_dtype)));
}

VkattnBackward backward_of(const VkattnProblem& p) {
    VkattnBackward backward = dense_backward(p);
    backward.dbias = p.mask == VKATTN_MASK_FLOAT;
    backward.dsinks = p.sinks;
    return backward;
}

Plans make_plans(const Runtime& runtime, const VkattnProblem& p, VkattnOptions options, Pass pass) {
    Plans plans;
    if (pass == Pass::forward) {
        plans.forward = runtime.plan(p, options);
        return plans;
    }
    plans.backward = runtime.backward_plan(p, backward_of(p), options);
    options.tuning = options.kernel = options.variant = nullptr;
    plans.forward = runtime.plan(p, options);
    return plans;
}

const Plan& timed_plan(const Plans& plans, Pass pass) {
    return pass == Pass::forward ? plans.forward : plans.backward;
}

double warming_time(const Runtime& runtime, double gpu_ms) {
    return runtime.device().type == std::string_view("cpu") ? gpu_ms / 10 : gpu_ms;
}

Timing Workload::time(const Plans& plans, double warm_for_ms, uint32_t repeats) {
    uint64_t scratch_bytes = 0;
    for (const Plan* plan : {&plans.forward, &plans.backward})
        if (plan->get() != nullptr) scratch_bytes = std::max(scratch_bytes, plan->scratch().size_bytes);
    const Buffer scratch = runtime_.allocate(scratch_bytes);
    for (Tensors& t : tensors_) {
        if (pass_ == Pass::backward && !t.has_out) runtime_.run(plans.forward, forward_args(t, scratch));
        t.has_out = true;
    }
    Timing timing{{}, warm_up(plans, scratch, warming_time(runtime_, warm_for_ms))};
    Phase phase("timing", repeats);
    for (uint32_t i = 0; i < repeats && !stop_requested(); i++, phase.advance())
        timing.ms.push_back(run_block(plans, scratch, timing.runs_in_block));
    return timing;
}

// For so long at least, and until a block is not faster than the one before. Returns how many runs a block has: an H200
// whose runs are submitted one by one is idle 60 % of the time and stays at 525 of 1,980 MHz (D64, N 512: 1.04
// instead of 0.29 ms).
uint32_t Workload::warm_up(const Plans& plans, const Buffer& scratch, double warm_for_ms) {
    const Phase phase("warming up");
    double warm = run(plans, scratch);  // a CPU compiles in its first: of no use for `before`
    double before = std::numeric_limits<double>::infinity();
    uint32_t runs = 1;
    for (int blocks = 0; blocks < most_blocks && warm < most_warming * warm_for_ms && !stop_requested();
         blocks++) {
        const double ms = std::max(run_block(plans, scratch, runs), 1e-3);
        warm += ms * runs;
        // Not more at once: a device whose clock cannot be trusted is not to be asked for minutes in one submission.
        const auto fitting =
            static_cast<uint32_t>(std::clamp(block_ms / ms, 1.0, std::min(4.0 * runs, most_runs_in_block)));
        if (warm >= warm_for_ms && ms >= settled * before && fitting < 2 * runs) break;
        before = ms;
        runs = fitting;
    }
    return runs;
}

void Workload::poison() {
    for (Tensors& t : tensors_) {
        for (const Buffer* b : {&t.out, &t.lse, &t.dquery, &t.dkey, &t.dvalue})
            if (b->size_bytes() != 0) runtime_.fill(*b, 0xffffffff);
        t.ran = false;
    }
}

bool Workload::is_poisoned() {
    const Phase phase("looking through the output");
    for (const Tensors& t : tensors_)
        for (const Buffer* b : {&t.out, &t.lse, &t.dquery, &t.dkey, &t.dvalue}) {
            std::vector<std::byte> data(t.ran ? b->size_bytes() / 4 * 4 : 0);
            if (!data.empty()) runtime_.download(*b, data);
            for (size_t i = 0; i < data.size(); i += 4)
                if (std::all_of(&data[i], &data[i] + 4, [](std::byte x) { return x == std::byte{0xff}; }))
                    return true;
        }
    return false;
}

// A run in submissions that no watchdog minds.
double Workload::run(const Plans& plans, const Buffer& scratch) {
    const Tensors& t = next();
    submissions_ = 0;
    double ms = 0;
    if (pass_ != Pass::backward) {
        forward_run_ = runtime_.run(plans.forward, forward_args(t, scratch), forward_run_);
        ms += forward_run_.time_ms;
        submissions_ += forward_run_.submissions;
    }
    if (pass_ != Pass::forward) {
        backward_run_ = runtime_.run(plans.backward, backward_args(t, scratch), backward_run_);
        ms += backward_run_.time_ms;
        submissions_ += backward_run_.submissions;
    }
    return ms;
}

// Milliseconds of one of `count` runs, one behind the other in a submission.
double Workload::run_block(const Plans& plans, const Buffer& scratch, uint32_t count) {
    if (count == 1) return run(plans, scratch);
    const double ms = runtime_.submit([&](VkCommandBuffer commands) {
        for (uint32_t i = 0; i < count; i++) {
            const Tensors& t = next();
            if (pass_ != Pass::backward) plans.forward.cmd_forward(commands, forward_args(t, scratch));
            if (pass_ == Pass::both) runtime_.barrier(commands);
            if (pass_ != Pass::forward) plans.backward.cmd_backward(commands, backward_args(t, scratch));
            runtime_.barrier(commands);
        }
    });
    submissions_ = 1;
    return ms / count;
}

Workload::Tensors& Workload::next() {
    Tensors& t = tensors_[next_++ % tensors_.size()];
    t.ran = true;
    return t;
}

VkattnForwardArgs Workload::forward_args(const Tensors& t, const Buffer& scratch) const {
    VkattnForwardArgs args = vkattn::forward_args();
    args.query = t.query.address();
    args.key = t.key.address();
    args.value = t.value.address();
    args.out = t.out.address();
    args.lse = t.lse.address();
    args.mask = mask_.address();
    for (size_t i = 0; i < num_arrays; i++) ArrayOption::all()[i].set_address(args, arrays_[i].address());
    args.scratch_buffer = scratch.handle();
    args.scratch_address = scratch.address();
    return args;
}

VkattnBackwardArgs Workload::backward_args(const Tensors& t, const Buffer& scratch) const {
    VkattnBackwardArgs args = vkattn::backward_args();
    args.query = t.query.address();
    args.key = t.key.address();
    args.value = t.value.address();
    args.out = t.out.address();
    args.lse = t.lse.address();
    args.dout = t.dout.address();
    args.dquery = t.dquery.address();
    args.dkey = t.dkey.address();
    args.dvalue = t.dvalue.address();
    args.dbias = dbias_.address();
    args.dsinks = dsinks_.address();
    args.mask = mask_.address();
    for (size_t i = 0; i < num_arrays; i++) ArrayOption::all()[i].set_address(args, arrays_[i].address());
    args.scratch_buffer = scratch.handle();
    args.scratch_address = scratch.address();
    return args;
}

}  // namespace vkattn::tools
