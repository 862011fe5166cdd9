#include "suites.hpp"

#include <fmt/format.h>

#include <map>
#include <optional>

#include "bench_page.hpp"
#include "call.hpp"
#include "ceilings.hpp"
#include "common.hpp"
#include "field_names.hpp"
#include "files.hpp"
#include "interruption.hpp"
#include "on_threads.hpp"
#include "progress.hpp"
#include "workload.hpp"

namespace vkattn::tools {
VkattnProblem plain_problem(VkattnDtype dtype, uint32_t batch, uint32_t heads_q, uint32_t heads_kv,
                            uint32_t queries, uint32_t keys, uint32_t head_dim) {
    VkattnProblem p = problem();
    p.dtype = dtype;
    p.batch = batch;
    p.num_heads_q = heads_q;
    p.num_heads_kv = heads_kv;
    p.seqlen_q = queries;
    p.seqlen_kv = keys;
    p.head_dim_qk = p.head_dim_v = head_dim;
    set_dense_layout(p, false);
    return p;
}

namespace {

// batch * N = 16,384, heads * D = 2,048.
std::vector<SuiteCase> prefill(VkattnDtype dtype) {
    std::vector<SuiteCase> all;
    for (const uint32_t d : {64u, 128u, 256u})
        for (const bool causal : {false, true})
            for (uint32_t n = 512; n <= 16384; n *= 2) {
                VkattnProblem p = plain_problem(dtype, 16384 / n, 2048 / d, 2048 / d, n, n, d);
                p.causal = causal ? 1 : 0;
                all.push_back({fmt::format("prefill d{}{} n{}", d, causal ? " causal" : "", n), p});
            }
    return all;
}

// One query token, 32 query and 8 key heads, D128.
std::vector<SuiteCase> decode(VkattnDtype dtype) {
    std::vector<SuiteCase> all;
    for (const auto& [batch, n] :
         {std::pair{1u, 8192u}, {1u, 65536u}, {8u, 8192u}, {8u, 65536u}, {32u, 8192u}})
        all.push_back(
            {fmt::format("decode b{} n{}", batch, n), plain_problem(dtype, batch, 32, 8, 1, n, 128)});
    return all;
}

// By which llama.cpp's Vulkan kernels were measured: 16 heads.
std::vector<SuiteCase> llama(VkattnDtype dtype) {
    std::vector<SuiteCase> all;
    for (const uint32_t d : {64u, 128u})
        for (const uint32_t n : {4096u, 16384u})
            all.push_back({fmt::format("llama d{} n{}", d, n), plain_problem(dtype, 1, 16, 16, n, n, d)});
    return all;
}

// LayerKind tells what a layer of a model has beside its shape. A window of W keys reaches W - 1 keys to the left.
struct LayerKind {
    bool causal = true, sinks = false;
    uint32_t window = 0;  // 0: none
};

// Layers of models, by config.json of the model that is named, and by what its article says of images and sound.
// Prompts have 4,096 tokens; decoding attends to 16,384.
std::vector<SuiteCase> models(VkattnDtype dtype) {
    constexpr uint32_t prompt = 4096, cache = 16384;
    constexpr LayerKind whole{.causal = false}, causal{}, with_sinks{.sinks = true};
    std::vector<SuiteCase> all;
    const auto add = [&](const std::string& name, VkattnProblem p, const LayerKind& kind) {
        p.causal = kind.causal ? 1 : 0;
        if (kind.window != 0) p.window_left = kind.window - 1;
        p.sinks = kind.sinks ? 1 : 0;
        set_dense_layout(p, false);
        all.push_back({"models " + name, p});
    };
    const auto shape = [&](uint32_t batch, uint32_t heads_q, uint32_t heads_kv, uint32_t queries,
                           uint32_t keys, uint32_t head_dim) {
        return plain_problem(dtype, batch, heads_q, heads_kv, queries, keys, head_dim);
    };
    // meta-llama/Meta-Llama-3-8B. Qwen/Qwen3-8B has the same shape.
    add("llama-3-8b prompt", shape(1, 32, 8, prompt, prompt, 128), causal);
    add("llama-3-8b decode", shape(8, 32, 8, 1, cache, 128), causal);
    // meta-llama/Meta-Llama-3-70B
    add("llama-3-70b prompt", shape(1, 64, 8, prompt, prompt, 128), causal);
    add("llama-3-70b decode", shape(8, 64, 8, 1, cache, 128), causal);
    // google/gemma-3-4b-it: of six layers, one sees all keys, and five have a window.
    add("gemma-3-4b prompt", shape(1, 8, 4, prompt, prompt, 256), causal);
    add("gemma-3-4b window 1024", shape(1, 8, 4, prompt, prompt, 256), {.window = 1024});
    // openai/gpt-oss-20b: each second layer has a window, and all have sinks.
    add("gpt-oss-20b prompt", shape(1, 64, 8, prompt, prompt, 64), with_sinks);
    add("gpt-oss-20b window 128", shape(1, 64, 8, prompt, prompt, 64), {.sinks = true, .window = 128});
    add("gpt-oss-20b decode", shape(8, 64, 8, 1, cache, 64), with_sinks);
    // deepseek-ai/DeepSeek-V3: 128 + 64 head dims of keys and 128 of values. Decoding attends to the latent itself, of
    // 512 + 64, which all heads share.
    VkattnProblem p = shape(1, 128, 128, prompt, prompt, 192);
    p.head_dim_v = 128;
    add("deepseek-v3 prompt", p, causal);
    p = shape(1, 128, 1, 1, cache, 576);
    p.head_dim_v = 512;
    p.value_in_key = 1;
    add("deepseek-v3 decode", p, causal);
    // openai/whisper-large-v3: 30 seconds of sound are 1,500 positions.
    add("whisper-large-v3 encoder", shape(4, 20, 20, 1500, 1500, 64), whole);
    add("whisper-large-v3 cross", shape(4, 20, 20, 224, 1500, 64), whole);
    // google/vit-large-patch16-224: 14 x 14 patches and a token of the class.
    add("vit-l-16", shape(64, 16, 16, 197, 197, 64), whole);
    // stabilityai/stable-diffusion-3-medium, 1,024 x 1,024 pixels: 64 x 64 patches and 154 tokens of text.
    add("stable-diffusion-3-medium", shape(2, 24, 24, 4250, 4250, 64), whole);
    // Wan-AI/Wan2.1-T2V-1.3B, 81 frames of 832 x 480 pixels: 21 x 30 x 52 patches.
    add("wan-2.1-1.3b", shape(1, 12, 12, 32760, 32760, 128), whole);
    return all;
}

// Problems of many kinds, each of some hundredths of a second on a small GPU: is a plan's cost, counted as for
// max_dispatch_flops, in proportion to its time? The first case on each kernel calibrates the others.
std::vector<SuiteCase> watchdog(VkattnDtype dtype) {
    std::vector<SuiteCase> all;
    const auto add = [&](const std::string& name, const VkattnProblem& p) {
        all.push_back({"watchdog " + name, p});
    };
    add("d128", plain_problem(dtype, 2, 16, 16, 2048, 2048, 128));
    add("decode", plain_problem(dtype, 8, 32, 8, 1, 16384, 128));
    for (const uint32_t d : {32u, 64u, 80u, 256u})
        add(fmt::format("d{}", d), plain_problem(dtype, 2, 16, 16, 2048, 2048, d));
    for (const uint32_t n : {512u, 8192u})
        add(fmt::format("d128 n{}", n), plain_problem(dtype, 32768 / n, 16, 16, n, std::min(n, 2048u), 128));
    VkattnProblem p = plain_problem(dtype, 2, 16, 4, 4096, 4096, 128);
    p.causal = 1;
    add("d128 causal 4:1", p);
    p.window_left = 512;
    add("d128 window", p);
    p = plain_problem(dtype, 2, 16, 16, 2048, 2048, 64);
    p.softcap = 30;
    add("d64 softcap", p);
    add("decode mha", plain_problem(dtype, 8, 16, 16, 1, 16384, 64));
    add("decode 8 rows", plain_problem(dtype, 8, 32, 8, 8, 16384, 128));
    return all;
}

std::vector<SuiteCase> plain_cases(const std::string& suite, VkattnDtype dtype) {
    if (suite == "watchdog") return watchdog(dtype);
    if (suite == "prefill") return prefill(dtype);
    if (suite == "decode") return decode(dtype);
    if (suite == "llama") return llama(dtype);
    if (suite == "models") return models(dtype);
    throw UsageError("--suite", fmt::format("'{}' is not prefill, decode, llama, models or watchdog", suite));
}

// The plan, or why there is none.
std::pair<Plans, std::string> plan_of(const Runtime& runtime, const SuiteCase& c,
                                      const VkattnOptions& options, Pass pass) {
    std::pair<Plans, std::string> made;
    try {
        made.first = make_plans(runtime, c.problem, options, pass);
    } catch (const Error& error) {
        made.second = with_option_names(error.what(), Shapes::of_options);
    }
    return made;
}

// Null where the runs were interrupted.
Json measure(Runtime& runtime, const SuiteCase& c, const Plans& plans, const SuiteRun& run) {
    Workload workload(runtime, c.problem, run.pass, false, c.problem.seqlen_kv, run.block_map);
    workload.poison();
    const Timing time = workload.time(plans, warm_ms, run.repeats);
    if (time.ms.size() < run.repeats) return nullptr;
    const double ms = median(time.ms);
    if (workload.is_poisoned()) throw RuntimeError(c.name + ": part of the output was not written");
    const Json plan = Json::parse(timed_plan(plans, run.pass).describe());
    return Json{{"name", c.name},
                {"problem", problem_json(c.problem, run.options.bshd())},
                {"ms", ms},
                {"time_ms", time_json(time)},
                {"tflops", tflops(c.problem, run.pass, ms)},
                {"gbps", static_cast<double>(tensor_bytes(c.problem)) / ms * 1e-6},
                {"flops", timed_plan(plans, run.pass).info().flops},
                {"kernel", plan["kernel"]},
                {"tuning_row", plan["tuning_row"]},
                {"tuning", plan["tuning"]},
                {"precision", plan["precision"]}};
}

// One case for which memory does not suffice is refused, and the others go on.
Json measure_or_refuse(Runtime& runtime, const SuiteCase& c, const Plans& plans, const SuiteRun& run,
                       const Results& out) {
    try {
        return measure_against(out, [&] { return measure(runtime, c, plans, run); });
    } catch (const Error& error) {
        if (error.vk_result() != VK_ERROR_OUT_OF_DEVICE_MEMORY) throw;
        return {{"name", c.name}, {"refused", error.what()}};
    }
}

// Adds to each result what its time is as a multiple of the estimate, by the first result of its kernel.
void add_estimates(Json& results) {
    std::map<std::string, double> ms_of_flop;
    for (Json& r : results) {
        if (r.contains("refused")) continue;
        const double cost = r["ms"].get<double>() / r["flops"].get<double>();
        const double calibrated = ms_of_flop.try_emplace(r["kernel"], cost).first->second;
        r["estimate_ms"] = r["flops"].get<double>() * calibrated;
        r["of_estimate"] = cost / calibrated;
    }
}

void print_estimates(const Json& results) {
    print_row("time as a multiple of the estimate; the first case of a kernel calibrates it");
    for (const Json& r : results)
        if (r.contains("of_estimate"))
            print_row(fmt::format("{:32} {:10.4f} {:9.4f} {:8.2f}  {}", r["name"].get<std::string>(),
                                  r["ms"].get<double>(), r["estimate_ms"].get<double>(),
                                  r["of_estimate"].get<double>(), r["kernel"].get<std::string>()));
}

void print_line(const Json& r) {
    if (r.contains("refused"))
        print_row(fmt::format("{:32} {}", r["name"].get<std::string>(), r["refused"].get<std::string>()));
    else
        print_row(fmt::format("{:32} {:10.4f} {:9.4g} {:8.4g}  {} {}", r["name"].get<std::string>(),
                              r["ms"].get<double>(), r["tflops"].get<double>(), r["gbps"].get<double>(),
                              r["kernel"].get<std::string>(), r["tuning_row"].get<std::string>()));
}

void write_page(const SuiteRun& run, const Json& call) {
    if (run.report.empty()) return;
    write_text(
        "--report", run.report,
        bench_page(call, run.peer.empty() ? std::vector<Benched>() : read_benched("--peer", run.peer)));
}

std::vector<std::pair<Plans, std::string>> compile(Runtime& runtime, const std::vector<SuiteCase>& cases,
                                                   const SuiteRun& run) {
    std::vector<std::pair<Plans, std::string>> plans;
    plans.reserve(cases.size());
    Phase phase(compiling_pipelines, static_cast<double>(cases.size()));
    OnThreads<std::pair<Plans, std::string>> made(cases.size(), [&](size_t i) {
        return plan_of(runtime, cases[i], run.options.plan_options(), run.pass);
    });
    for (size_t i = 0; i < cases.size() && !stop_requested(); i++) {
        plans.push_back(made.take(i));
        phase.advance();
    }
    return plans;
}

}  // namespace

void list_suite(const std::string& suite) {
    for (const SuiteCase& c : plain_cases(suite, VKATTN_DTYPE_FLOAT16)) fmt::print("{}\n", c.name);
}

std::vector<SuiteCase> cases_of(const std::string& suite, const ShapeOptions& shape,
                                const AttentionOptions& options) {
    std::vector<SuiteCase> cases = plain_cases(suite, parse_dtype(shape.dtype));
    for (SuiteCase& c : cases) {
        options.apply(c.problem);
        shape.apply_terms(c.problem);
        set_dense_layout(c.problem, options.bshd());  // by the types
    }
    return cases;
}

Json measure_case(Runtime& runtime, const SuiteCase& c, const SuiteRun& run) {
    const Phase phase(c.name);
    const auto [plans, why] = plan_of(runtime, c, run.options.plan_options(), run.pass);
    if (!why.empty()) return {{"name", c.name}, {"refused", why}};
    return measure_or_refuse(runtime, c, plans, run, Results(false, false, ""));
}

void run_suite(Runtime& runtime, const std::string& suite, const std::vector<SuiteCase>& cases,
               const SuiteRun& run, Results& out) {
    Json call = call_json(runtime);
    call["suite"] = suite;
    call["pass"] = run.pass == Pass::forward ? "forward" : run.pass == Pass::backward ? "backward" : "both";
    call["dtype"] = dtype_text(cases.front().problem.dtype);
    call["options"] = options_json(run.options);
    call["options"].update({{"repeats", run.repeats}, {"block_map", run.block_map}});
    Json problems = Json::object();
    for (const SuiteCase& c : cases) problems[c.name] = problem_json(c.problem, run.options.bshd());
    out.require_alike(call, problems);
    const bool table = !out.is_json() && !out.is_csv();
    if (table) print_row(fmt::format("{:32} {:>10} {:>9} {:>8}  kernel", "case", "ms", "TFLOP/s", "GB/s"));
    Phase all(suite, static_cast<double>(cases.size()));
    const std::vector<std::pair<Plans, std::string>> plans = compile(runtime, cases, run);
    Json results = Json::array();
    for (size_t i = 0; i < cases.size() && !stop_requested(); i++) {
        const Phase phase(cases[i].name);
        const auto& [plan, why] = plans[i];
        Json result = why.empty() ? measure_or_refuse(runtime, cases[i], plan, run, out)
                                  : Json{{"name", cases[i].name}, {"refused", why}};
        if (result.is_null()) break;
        if (result.contains("refused")) out.compare(result);
        results.push_back(result);
        if (table) print_line(result);
        if (out.is_csv()) out.print_csv(result);
        all.advance();
    }
    if (suite == "watchdog") {
        add_estimates(results);
        if (table) print_estimates(results);
    }
    const bool interrupted = results.size() < cases.size();
    std::optional<Ceilings> ceilings;
    if (!interrupted && (!out.is_csv() || !run.report.empty())) ceilings = measure_ceilings(runtime);
    call.update(to_json(ceilings));
    call["cases"] = results;
    call["interrupted"] = interrupted;
    if (out.compares()) call["compared"] = out.summary(results);
    if (out.is_json()) fmt::print("{}\n", call.dump());
    if (ceilings) write_page(run, call);
    if (interrupted) end_if_interrupted();
    if (table)
        fmt::print("ceilings {}, measured in this run on {}\n", to_text(*ceilings), runtime.device().name);
    out.finish(results);
}

}  // namespace vkattn::tools
