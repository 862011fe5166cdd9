#include "common.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>

#include "block_maps.hpp"
#include "field_names.hpp"
#include "interruption.hpp"
#include "modules.hpp"
#include "numbers.hpp"
#include "paths.hpp"
#include "progress.hpp"

namespace vkattn::tools {
namespace {

constexpr double most_gflop = 1e9;  // 1e18 operations fit 64 bits

// A whole number, of which k and M are multiples.
template <class T>
T parse_whole(const std::string& argument, std::string_view text, const char* kind) {
    using Limits = std::numeric_limits<T>;
    const WholeNumber number = whole_number(text, Limits::min(), Limits::max(), kind);
    if (!number.wrong.empty()) throw UsageError(argument, number.wrong);
    return static_cast<T>(number.value);
}

VkattnPrecision parse_precision(const std::string& text) {
    if (text == "storage") return VKATTN_PRECISION_STORAGE;
    const std::optional<VkattnDtype> dtype = dtype_named(text);
    if (dtype == VKATTN_DTYPE_FLOAT16) return VKATTN_PRECISION_FLOAT16;
    if (dtype == VKATTN_DTYPE_BFLOAT16) return VKATTN_PRECISION_BFLOAT16;
    throw UsageError("--precision", fmt::format("'{}' is not storage, f16 or bf16", text));
}

void parse_align(const std::string& text, VkattnProblem& problem) {
    if (text.empty() || text == "bottom-right") {
        problem.align = VKATTN_ALIGN_BOTTOM_RIGHT;
    } else if (text == "top-left") {
        problem.align = VKATTN_ALIGN_TOP_LEFT;
    } else {
        problem.align = VKATTN_ALIGN_OFFSET;
        problem.query_offset =
            parse_whole<int64_t>("--align", text, "top-left, bottom-right or a whole number");
    }
}

void parse_window(const std::string& text, VkattnProblem& problem) {
    if (text.empty()) return;
    const size_t comma = text.find(',');
    if (comma == std::string::npos) throw UsageError("--window", fmt::format("'{}' is not LEFT,RIGHT", text));
    const std::string_view view = text;
    problem.window_left = parse_whole<int64_t>("--window", view.substr(0, comma), "a whole number");
    problem.window_right = parse_whole<int64_t>("--window", view.substr(comma + 1), "a whole number");
}

void parse_block_size(const std::string& text, VkattnProblem& problem) {
    const size_t comma = text.find(',');
    if (comma == text.npos) throw UsageError("--block-size", fmt::format("'{}' is not ROWS,KEYS", text));
    problem.block_rows = parse_whole<uint32_t>("--block-size", text.substr(0, comma), "a whole number");
    problem.block_keys = parse_whole<uint32_t>("--block-size", text.substr(comma + 1), "a whole number");
    for (const uint32_t size : {problem.block_rows, problem.block_keys})
        if (size == 0 || size % 16 != 0)
            throw UsageError("--block-size", fmt::format("{} is not a multiple of 16", size));
}

void parse_mask_shape(const std::string& text, VkattnProblem& problem) {
    std::string_view rest = text;
    for (bool more = true; more; problem.mask_rank++) {
        if (problem.mask_rank == std::size(problem.mask_extents))
            throw UsageError("--mask-shape", fmt::format("'{}' has more than 4 extents", text));
        const size_t comma = rest.find(',');
        problem.mask_extents[problem.mask_rank] =
            parse_whole<uint32_t>("--mask-shape", rest.substr(0, comma), "a whole number");
        more = comma != rest.npos;
        if (more) rest.remove_prefix(comma + 1);
    }
}

}  // namespace

VkattnDtype parse_dtype(const std::string& text) {
    return parse_dtype_of("--dtype", text);
}

const char* dtype_text(VkattnDtype dtype) {
    return test::name_of(dtype);
}

VkattnDtype dtype_of(const VkattnProblem& p, VkattnDtype operand) {
    return operand == VKATTN_DTYPE_SAME ? p.dtype : operand;
}

std::vector<std::pair<std::string, VkattnDtype>> own_dtypes(const VkattnProblem& p) {
    std::vector<std::pair<std::string, VkattnDtype>> own = {
        {"key", p.key_dtype}, {"value", p.value_dtype}, {"out", p.out_dtype}};
    if (p.mask == VKATTN_MASK_FLOAT) own.emplace_back("mask", p.mask_dtype);
    std::erase_if(own, [&](const auto& operand) { return dtype_of(p, operand.second) == p.dtype; });
    return own;
}

std::string dtypes_text(const VkattnProblem& p) {
    std::string text = dtype_text(p.dtype);
    for (const auto& [operand, dtype] : own_dtypes(p))
        text += fmt::format(", {} {}", operand, dtype_text(dtype));
    return text;
}

NpyDtype npy_dtype(VkattnDtype dtype) {
    return dtype == VKATTN_DTYPE_FLOAT16    ? NpyDtype::float16
           : dtype == VKATTN_DTYPE_BFLOAT16 ? NpyDtype::bfloat16
                                            : NpyDtype::float32;
}

void AttentionOptions::add_to(CLI::App& app) {
    app.add_option("--layout", layout, "Order of the tensors' axes: bhsd (default) or bshd");
    app.add_option("--scale", scale, "Softmax scale; default 1/sqrt(head_dim_qk)")
        ->transform(real_validator<float>());
    app.add_flag("--causal", causal, "Query row i sees keys up to its own position");
    app.add_option(
        "--align", align,
        "Key position of query row 0: top-left (0), bottom-right (len_kv - len_q, the default) or a number");
    app.add_option("--window", window,
                   "LEFT,RIGHT: keys this far before and after a row's position; -1 = unbounded");
    app.add_option("--softcap", softcap, "Scores become softcap * tanh(score / softcap); 0 = none")
        ->transform(real_validator<float>());
    app.add_option("--alibi-of", alibi_of,
                   "What the slopes of --alibi are applied to: distance (default) or mask, a float one");
    app.add_option("--block-size", block_size, "ROWS,KEYS of a block of --block-map; default 128,128");
    app.add_option("--kernel", kernel,
                   "auto, or the kernel to use: rows_dot, matrix_rows, rows, matrix, matrix_khr, tiles_dot, "
                   "tiles, materialized");
    app.add_option("--tuning", tuning, "Numbers over the tuning row, as in rows=4,cols=8");
    app.add_option(
           "--module", modules,
           "NAME=FILE: SPIR-V in place of a module of `vkattn info --modules`; may be given several times")
        ->expected(1)
        ->take_all();
    app.add_option("--precision", precision,
                   "Of the operands of float32's products: storage (default), f16 or bf16, on matrix units");
    app.add_option("--num-splits", num_splits,
                   "Parts that the keys are split into; 0 = the planner decides (default)")
        ->transform(count_validator());
    app.add_flag("--batch-invariant", batch_invariant,
                 "A row's bits do not depend on what else is in the batch");
    app.add_option("--max-dispatch-gflop", max_dispatch_gflop,
                   "No dispatch is estimated to cost more; 0 = a default for the type of device")
        ->transform(real_validator(most_gflop));
    app.add_option("--device", device,
                   "Index, part of the name, or UUID; default $VKATTN_DEVICE, else the best");
    app.add_option("--pipeline-cache", pipeline_cache,
                   "File of compiled pipelines, read and written: a faster start");
    app.add_flag("--json", json, "One JSON object on stdout");
}

void AttentionOptions::apply(VkattnProblem& problem) const {
    if (!scale.empty()) problem.softmax_scale = std::strtof(scale.c_str(), nullptr);  // add_to has checked it
    if (!(max_dispatch_gflop >= 0 && max_dispatch_gflop <= most_gflop))
        throw UsageError("--max-dispatch-gflop",
                         fmt::format("{} is not within 0 .. {:g}", max_dispatch_gflop, most_gflop));
    if (causal) problem.causal = 1;
    if (softcap != 0) problem.softcap = softcap;
    if (alibi_of != "distance" && alibi_of != "mask")
        throw UsageError("--alibi-of", fmt::format("'{}' is not distance or mask", alibi_of));
    if (alibi_of == "mask") problem.slopes_apply = VKATTN_SLOPES_APPLY_MASK;
    if (!block_size.empty()) parse_block_size(block_size, problem);
    parse_align(align, problem);
    parse_window(window, problem);
}

bool AttentionOptions::bshd() const {
    if (layout != "bhsd" && layout != "bshd")
        throw UsageError("--layout", fmt::format("'{}' is not bhsd or bshd", layout));
    return layout == "bshd";
}

VkattnOptions AttentionOptions::plan_options() const {
    VkattnOptions o = options();
    o.kernel = kernel.c_str();
    o.tuning = tuning.c_str();
    o.variant = modules.empty() ? nullptr : variant_of_options;
    o.precision = parse_precision(precision);
    o.num_splits = num_splits;
    o.batch_invariant = batch_invariant;
    o.max_dispatch_flops = static_cast<uint64_t>(std::ceil(max_dispatch_gflop * 1e9));
    return o;
}

RuntimeOptions AttentionOptions::runtime_options() const {
    RuntimeOptions o;
    o.device = device;
    o.pipeline_cache = pipeline_cache;
    if (pipeline_cache == "-")
        throw UsageError("--pipeline-cache", "'-' names no file here: both reading and writing need one");
    const std::filesystem::path cache = path_of(pipeline_cache), folder = cache.parent_path();
    if (std::filesystem::is_directory(cache))
        throw UsageError("--pipeline-cache", pipeline_cache + " is a folder");
    if (!folder.empty() && !std::filesystem::is_directory(folder))
        throw UsageError("--pipeline-cache", text_of_path(folder) + " is no folder");
    return o;
}

CLI::Option* add_value_in_key(CLI::App& app, std::optional<uint32_t>& value_in_key) {
    return app
        .add_option("--value-in-key", value_in_key,
                    "The value of a key is the first N elements of its row, as in latent attention")
        ->transform(count_validator());
}

void ShapeOptions::add_to(CLI::App& app) {
    const CLI::Validator count = count_validator();
    app.add_option("--batch", batch, "Default 1")->transform(count);
    app.add_option("--heads-q", heads_q, "Query heads; default 1")->transform(count);
    app.add_option("--heads-kv", heads_kv, "Key and value heads; default as --heads-q")->transform(count);
    app.add_option("--seqlen-q", seqlen_q, "Query rows, as in 512 or 4k")->transform(count)->required();
    app.add_option("--seqlen-kv", seqlen_kv, "Keys; default as --seqlen-q")->transform(count);
    // One option under two names: without --head-dim-v it is that of value, too.
    app.add_option("--head-dim-qk,--head-dim", head_dim_qk,
                   "Head dimension of query and key, and of value where --head-dim-v is not given")
        ->transform(count)
        ->required();
    CLI::Option* const dim_of_value =
        app.add_option("--head-dim-v", head_dim_v, "Head dimension of value; default as --head-dim-qk")
            ->transform(count);
    add_value_in_key(app, value_in_key)->excludes(dim_of_value);
    app.add_option("--dtype", dtype,
                   "Of query and of what has no type of its own: f32 (default), f16 or bf16");
    app.add_option("--kv-dtype", kv_dtype,
                   "Of key and value, or of both as in q8_0,f16: f32, f16, bf16, " + stored_type_names());
    app.add_option(
        "--kv-scales", kv_scales,
        "Scales of int8, e4m3 and e5m2 come in device memory: one, heads (one a head) or rows (one a "
        "key); bench takes 1/128");
    app.add_option("--out-dtype", out_dtype, "Of out: f32, f16 or bf16");
    CLI::Option* mask =
        app.add_option("--mask-shape", mask_shape, "A mask of these 1 to 4 extents, as in 1,1,128,128");
    app.add_option("--mask-type", mask_type, "bool (default), or float: added")->needs(mask);
    app.add_option("--mask-dtype", mask_dtype, "Of a float mask: f32, f16 or bf16; default as --dtype")
        ->needs(mask);
    app.add_flag("--kv-lengths-given", kv_lengths_given, "Key counts per batch come in device memory");
    app.add_flag("--alibi", alibi,
                 "Slopes of the query heads come in device memory; bench takes 2^(-8 i / heads)");
    app.add_option(
        "--block-map", block_map,
        "A map of blocks: random:SHARE hides that share of each head's, causal-documents:N, or ones");
    app.add_flag("--sinks", sinks, "Sinks of the query heads come in device memory; bench takes 0");
}

void ShapeOptions::apply(VkattnProblem& problem) const {
    problem.batch = batch;
    problem.num_heads_q = heads_q;
    problem.num_heads_kv = heads_kv.value_or(heads_q);
    problem.seqlen_q = seqlen_q;
    problem.seqlen_kv = seqlen_kv.value_or(seqlen_q);
    problem.head_dim_qk = head_dim_qk;
    problem.value_in_key = value_in_key.has_value() ? 1 : 0;
    if (value_in_key == 0u) throw UsageError("--value-in-key", "0 elements are no value");
    problem.head_dim_v = value_in_key ? *value_in_key : head_dim_v.value_or(head_dim_qk);
    problem.dtype = parse_dtype(dtype);
    if (mask_dtype) problem.mask_dtype = parse_dtype_of("--mask-dtype", *mask_dtype);
    problem.kv_lengths = kv_lengths_given;
    apply_terms(problem);
    if (mask_type != "bool" && mask_type != "float")
        throw UsageError("--mask-type", fmt::format("'{}' is not bool or float", mask_type));
    if (mask_dtype && mask_type == "bool")
        throw UsageError("--mask-dtype", "is of a float mask: --mask-type float");
    if (mask_shape.empty()) return;
    problem.mask = mask_type == "bool" ? VKATTN_MASK_BOOL : VKATTN_MASK_FLOAT;
    parse_mask_shape(mask_shape, problem);
}

void check_types_of_key(const VkattnProblem& p) {
    if (dtype_of(p, p.key_dtype) != dtype_of(p, p.value_dtype))
        throw UsageError("--kv-dtype", fmt::format("{} for a value that lies in its key, which is {}",
                                                   dtype_text(dtype_of(p, p.value_dtype)),
                                                   dtype_text(dtype_of(p, p.key_dtype))));
}

const char* scales_text(VkattnScales scales) {
    return scales == VKATTN_SCALES_ONE ? "one" : scales == VKATTN_SCALES_PER_HEAD ? "heads" : "rows";
}

// Asks for scales of the operands that can have some.
static void set_scales(const std::string& kind, VkattnProblem& p) {
    const auto kinds = {VKATTN_SCALES_ONE, VKATTN_SCALES_PER_HEAD, VKATTN_SCALES_PER_ROW};
    const auto found = std::ranges::find_if(kinds, [&](VkattnScales s) { return kind == scales_text(s); });
    if (found == kinds.end())
        throw UsageError("--kv-scales", fmt::format("'{}' is not one, heads or rows", kind));
    if (is_single_bytes(p.key_dtype)) p.key_scales = *found;
    if (is_single_bytes(p.value_dtype) && p.value_in_key == 0) p.value_scales = *found;
    if (p.key_scales == VKATTN_SCALES_NONE && p.value_scales == VKATTN_SCALES_NONE)
        throw UsageError("--kv-scales", "neither key nor value is int8, e4m3 or e5m2: --kv-dtype");
}

void ShapeOptions::apply_terms(VkattnProblem& problem) const {
    if (kv_dtype) std::tie(problem.key_dtype, problem.value_dtype) = parse_kv_dtypes(*kv_dtype);
    if (value_in_key) check_types_of_key(problem);
    if (problem.value_in_key != 0) problem.value_dtype = problem.key_dtype;  // of a suite's case, too
    if (kv_scales) set_scales(*kv_scales, problem);
    if (out_dtype) problem.out_dtype = parse_dtype_of("--out-dtype", *out_dtype);
    if (alibi) problem.slopes = VKATTN_SLOPES_PER_HEAD;
    if (sinks) problem.sinks = 1;
    if (!block_map.empty()) ask_for_map(block_map, problem);
}

void set_dense_layout(VkattnProblem& p, bool bshd) {
    const auto strides = [&](uint64_t heads, uint64_t seqlen, uint64_t dim) {
        const uint64_t whole = heads * seqlen * dim;
        return bshd ? VkattnStrides{whole, dim, heads * dim} : VkattnStrides{whole, seqlen * dim, dim};
    };
    p.query_strides = strides(p.num_heads_q, p.seqlen_q, p.head_dim_qk);
    p.key_strides = strides(p.num_heads_kv, p.seqlen_kv, p.head_dim_qk);
    p.value_strides = strides(p.num_heads_kv, p.seqlen_kv, p.head_dim_v);
    p.out_strides = strides(p.num_heads_q, p.seqlen_q, p.head_dim_v);
    uint32_t rows = 0;  // bytes, of each tensor but those of blocks, which have an alignment of their own
    const auto add = [&](uint32_t dim, VkattnDtype operand) {
        const VkattnDtype dtype = dtype_of(p, operand);
        if (blocks_of(dtype) == nullptr) rows |= dim * element_bytes(dtype);
    };
    add(p.head_dim_qk, p.dtype);
    add(p.head_dim_qk, p.key_dtype);
    add(p.head_dim_v, p.value_dtype);
    add(p.head_dim_v, p.out_dtype);
    p.alignment_bytes = std::min(256u, rows & (~rows + 1));  // the largest power of two that divides all
}

VkattnBackward dense_backward(const VkattnProblem& problem) {
    VkattnBackward b = backward();
    b.dout_strides = problem.out_strides;
    b.dquery_strides = problem.query_strides;
    b.dkey_strides = problem.key_strides;
    b.dvalue_strides = problem.value_strides;
    return b;
}

Runtime open_runtime(const AttentionOptions& options) {
    const Phase phase("opening the device");
    RuntimeOptions chosen = options.runtime_options();
    std::optional<Phase> test;  // of a driver that is new to the pipeline cache
    chosen.self_test_progress = [&test](uint32_t done, uint32_t steps, const char*) {
        if (done != 0)
            test->advance();
        else
            test.emplace("testing kernels (first run)", steps);
        return stop_requested().load();
    };
    chosen.cache_failed = [](const std::string& why) {
        constexpr std::string_view field = "options.pipeline_cache: ";
        const std::string reason = why.substr(why.starts_with(field) ? field.size() : 0);
        print_warning(fmt::format("--pipeline-cache: {}; what was compiled is not kept", reason));
    };
    try {
        return Runtime(chosen);
    } catch (const RuntimeError& error) {
        if (error.field().empty()) throw;
        const std::string field = with_option_names(error.field(), Shapes::of_options);
        throw UsageError(field, error.what() + error.field().size() + 2);
    }
}

void require_execution(Runtime& runtime) {
    runtime.submit([](VkCommandBuffer) {});
    for (const std::string& message : runtime.messages()) fmt::print(stderr, "vkattn: {}\n", message);
}

uint64_t element_count(uint32_t batch, uint32_t heads, uint32_t seqlen, uint32_t dim) {
    return uint64_t{batch} * heads * seqlen * dim;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

std::string bytes_text(double bytes) {
    const char* units[] = {"bytes", "KB", "MB", "GB", "TB"};
    size_t unit = 0;
    while (bytes >= 1000 && unit + 1 < std::size(units)) {
        bytes /= 1000;
        unit++;
    }
    return unit == 0 ? fmt::format("{:.0f} {}", bytes, units[unit])
                     : fmt::format("{:.3g} {}", bytes, units[unit]);
}

void rethrow_as_usage(const Error& error, Shapes shapes) {
    const std::string name = with_option_names(error.field(), shapes),
                      text = with_option_names(error.message(), shapes);
    if (error.status() == VKATTN_INVALID_ARGUMENT) throw UsageError(name, text);
    throw RuntimeError(name.empty() ? text : name + ": " + text);
}

}  // namespace vkattn::tools
