// vkattn bench: how fast problems run, beside the device's own ceilings measured in the same run, and beside the
// results of an earlier bench.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "arrays.hpp"
#include "bench_page.hpp"
#include "bench_results.hpp"
#include "call.hpp"
#include "ceilings.hpp"
#include "common.hpp"
#include "field_names.hpp"
#include "files.hpp"
#include "interruption.hpp"
#include "modules.hpp"
#include "numbers.hpp"
#include "on_threads.hpp"
#include "paths.hpp"
#include "progress.hpp"
#include "startup.hpp"
#include "suites.hpp"
#include "workload.hpp"

namespace vkattn::tools {
namespace {

// The lengths of an option like 1k..256k, each twice the one before; none where one number was given.
struct LengthRange {
    std::vector<uint32_t> lengths;

    // Takes the range out of an option's text, and leaves its first number. Returns what is wrong with it, or "".
    std::string take_from(std::string& text) {
        const size_t dots = text.find("..");
        if (dots == std::string::npos) return "";
        constexpr const char* kind = "a whole number, as in 1k..256k";
        const WholeNumber first = whole_number(text.substr(0, dots), 1, UINT32_MAX, kind);
        const WholeNumber last = whole_number(text.substr(dots + 2), 1, UINT32_MAX, kind);
        for (const WholeNumber& number : {first, last})
            if (!number.wrong.empty()) return number.wrong;
        lengths.clear();
        for (int64_t n = first.value; n <= last.value; n *= 2) lengths.push_back(static_cast<uint32_t>(n));
        if (lengths.empty() || lengths.back() != last.value)
            return fmt::format("'{}' does not end with its first number times a power of two", text);
        text = std::to_string(first.value);
        return "";
    }
};

struct Bench {
    AttentionOptions attention;
    ShapeOptions shape;
    uint32_t repeats = 20;
    std::optional<uint32_t> kv_lengths;
    std::string sweep, mask_fill = "visible", pass_text = "forward", suite, compared, report, peer;
    bool list = false, csv = false;
    LengthRange queries, keys;

    Pass pass() const {
        if (pass_text == "forward") return Pass::forward;
        if (pass_text == "backward") return Pass::backward;
        if (pass_text == "both") return Pass::both;
        throw UsageError("--pass", fmt::format("'{}' is not forward, backward or both", pass_text));
    }
};

constexpr double sweep_warm_ms = 60;
constexpr const char* stopping =
    "\nfinishing the run under way; the same signal again ends the program at once, without its results\n";

// The problem by whose work rates are counted: each batch has as many keys as its kv length says.
VkattnProblem counted(const Bench& b, VkattnProblem p) {
    p.seqlen_kv = b.kv_lengths.value_or(p.seqlen_kv);
    return p;
}

Plans make_plans(const Bench& b, const Runtime& runtime, const VkattnProblem& p, const char* tuning) {
    const Phase phase(compiling_pipelines);
    VkattnOptions o = b.attention.plan_options();
    if (tuning != nullptr) o.tuning = tuning;
    return make_plans(runtime, p, o, b.pass());
}

// An interruption leaves fewer blocks of runs than were asked for, and nothing that is measured behind them.
struct Result {
    Json time;  // as time_json() has it
    double tflops, gbps;
    uint32_t segments, submissions;
    std::optional<Ceilings> ceilings;
    std::optional<Startup> startup;

    double median_ms() const { return time["median"]; }
};

// Returns the rate as a part of the most, or null where that was not measured.
Json part_of(double rate, const std::optional<double>& most) {
    return most ? Json(rate / *most) : Json();
}

Json startup_json(const std::optional<Startup>& s) {
    if (!s) return nullptr;
    return {{"cold_ms", s->cold_ms},
            {"warm_ms", s->warm_ms},
            {"plan_us", s->plan_us},
            {"record_us", s->record_us},
            {"pipelines_built", s->built}};
}

// Places for tensors of which nothing is read: recordings that are timed on the host only. They are far from each
// other, because outputs that overlap are refused, and from the scratch, which is real.
constexpr VkDeviceAddress place(uint32_t number) {
    return VkDeviceAddress{number} << 57;
}

template <class Args>
Args with_addresses(Args args, const VkattnProblem& p) {
    args.query = args.key = args.value = place(1);
    args.out = place(2);
    args.lse = place(3);
    if (p.mask != VKATTN_MASK_NONE) args.mask = args.query;
    for (const ArrayOption& array : ArrayOption::all())
        if (array.asked(p)) array.set_address(args, args.query);
    return args;
}

// Of the pass's plan; of both passes the backward's.
Startup measure_startup(const Bench& b, Runtime& runtime, const VkattnProblem& p) {
    VkattnOptions o = b.attention.plan_options();
    o.variant = nullptr;  // the contexts that are made for this have the library's modules alone
    StartupWork work;
    if (b.pass() == Pass::forward) {
        work.plan = [&](VkattnContext* context, const VkattnProblem& problem) {
            return Plan(context, problem, o);
        };
        work.record = [&](VkCommandBuffer c, const Plan& plan, const Buffer& scratch) {
            VkattnForwardArgs args = with_addresses(forward_args(), p);
            args.scratch_buffer = scratch.handle();
            args.scratch_address = scratch.address();
            plan.cmd_forward(c, args);
        };
    } else {
        work.plan = [&](VkattnContext* context, const VkattnProblem& problem) {
            return Plan(context, problem, backward_of(problem), o);
        };
        work.record = [&](VkCommandBuffer c, const Plan& plan, const Buffer& scratch) {
            VkattnBackwardArgs args = with_addresses(backward_args(), p);
            args.dout = args.query;
            args.dquery = place(4);
            args.dkey = place(5);
            args.dvalue = place(6);
            args.dbias = place(7);
            args.dsinks = place(8);
            args.scratch_buffer = scratch.handle();
            args.scratch_address = scratch.address();
            plan.cmd_backward(c, args);
        };
    }
    const Phase phase("measuring the first and later uses");
    return measure_startup(runtime, p, b.attention.bshd(), work);
}

// Returns the part of the JSON that is known before anything is measured.
Json described(const Bench& b, const Runtime& runtime, const VkattnProblem& p) {
    Json out = call_json(runtime);
    out["dtype"] = dtype_text(p.dtype);
    out["pass"] = b.pass_text;
    out["problem"] = problem_json(p, b.attention.bshd());
    out["options"] = options_json(b.attention);
    out["options"].update(
        {{"repeats", b.repeats}, {"mask_fill", b.mask_fill}, {"block_map", b.shape.block_map}});
    if (b.kv_lengths) out["options"]["kv_lengths"] = *b.kv_lengths;
    return out;
}

Json result_json(const Json& description, const Json& plan, const Result& r) {
    std::optional<double> rate, fma, copy, read;
    if (r.ceilings) {
        rate = rate_ceiling(*r.ceilings, plan["kernel"]).tflops;
        fma = r.ceilings->fma_tflops;
        copy = r.ceilings->copy_gbps;
        read = r.ceilings->read_gbps;
    }
    Json out = description;
    out.update({{"kernel", plan["kernel"]},
                {"tuning_row", plan["tuning_row"]},
                {"tuning", plan["tuning"]},
                {"precision", plan["precision"]},
                {"scratch_bytes", plan["scratch_bytes"]},
                {"segments", r.segments},
                {"submissions", r.submissions},
                {"time_ms", r.time},
                {"tflops", r.tflops},
                {"gbps", r.gbps},
                {"rate_ratio", part_of(r.tflops, rate)},
                {"fma_ratio", part_of(r.tflops, fma)},
                {"copy_ratio", part_of(r.gbps, copy)},
                {"read_ratio", part_of(r.gbps, read)},
                {"startup", startup_json(r.startup)},
                {"interrupted", !r.startup}});
    out.update(to_json(r.ceilings));
    return out;
}

void print_rates(const Json& plan, const Result& r) {
    if (!r.ceilings) {
        fmt::print("rate     {:.3f} TFLOP/s\n", r.tflops);
        fmt::print("traffic  {:.1f} GB/s of query, key, value and out\n", r.gbps);
        return;
    }
    const Ceilings& ceilings = *r.ceilings;
    const RateCeiling most_tflops = rate_ceiling(ceilings, plan["kernel"]);
    fmt::print("rate     {:.3f} TFLOP/s, {:.1f} % of the {} rate\n", r.tflops,
               100 * r.tflops / most_tflops.tflops, most_tflops.name);
    fmt::print("traffic  {:.1f} GB/s of query, key, value and out, {:.1f} % of the reading bandwidth\n",
               r.gbps, 100 * r.gbps / ceilings.read_gbps);
    fmt::print("ceiling  {:.3f} TFLOP/s float32 FMA, measured in this run\n", ceilings.fma_tflops);
    if (ceilings.matrix_tflops)
        fmt::print("ceiling  {:.3f} TFLOP/s float16 matrix\n", *ceilings.matrix_tflops);
    fmt::print("ceiling  {:.1f} GB/s copy, {:.1f} GB/s read\n", ceilings.copy_gbps, ceilings.read_gbps);
}

void print_text(const DeviceInfo& d, const Json& plan, const Result& r) {
    fmt::print("device   {}\n", d.name);
    fmt::print("driver   {}\n", d.driver);
    fmt::print("kernel   {}, products of {}\n", plan["kernel"].get<std::string>(),
               plan["precision"].get<std::string>());
    fmt::print("tuning   {}: {}\n", plan["tuning_row"].get<std::string>(), plan["tuning"].get<std::string>());
    fmt::print("time     {:.4f} ms, the median; least {:.4f}, most {:.4f}\n", r.median_ms(),
               r.time["min"].get<double>(), r.time["max"].get<double>());
    fmt::print("runs     {} of {}, each run of {} in {}\n", count_text(r.time["blocks"], "block"),
               count_text(r.time["runs_in_block"], "run"), count_text(r.segments, "segment"),
               count_text(r.submissions, "submission"));
    print_rates(plan, r);
    if (!r.startup) return;
    fmt::print("first    {:.1f} ms for context, plan, pipelines and recording\n", r.startup->cold_ms);
    fmt::print("startup  {:.1f} ms for the same with a pipeline cache\n", r.startup->warm_ms);
    fmt::print("plan     {:.1f} us for another length, {} built\n", r.startup->plan_us,
               count_text(r.startup->built, "pipeline"));
    fmt::print("record   {:.1f} us for another length\n", r.startup->record_us);
}

// One line a tuning of the file, over the same tensors: how the rows of src/plan/tuning.cpp are found. All
// pipelines are built first: while one is built the device idles, and its clock drops.
void sweep(const Bench& b, Runtime& runtime, const VkattnProblem& p) {
    if (b.sweep == "-")
        throw UsageError("--sweep", "'-' names no file: tunings are not read from standard input");
    std::ifstream file(path_of(b.sweep));
    if (!file || file.peek() == std::ifstream::traits_type::eof())
        throw UsageError("--sweep", fmt::format("cannot read a tuning from {}", b.sweep));
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);)
        if (!line.empty() && line[0] != '#') lines.push_back(line);
    OnThreads<Plans> made(lines.size(),
                          [&](size_t i) { return make_plans(b, runtime, p, lines[i].c_str()); });
    std::vector<std::pair<std::string, Plans>> plans;
    for (size_t i = 0; i < lines.size() && !stop_requested(); i++) {
        const std::string& line = lines[i];
        try {
            plans.emplace_back(line, made.take(i));
        } catch (const Error& error) {
            print_row(
                fmt::format("refused  {}: {}", line, with_option_names(error.what(), Shapes::of_options)));
        }
    }
    end_if_interrupted();
    Workload workload(runtime, p, b.pass(), b.mask_fill == "random", b.kv_lengths.value_or(p.seqlen_kv),
                      b.shape.block_map);
    const Ceilings ceilings = measure_ceilings(runtime);
    Phase phase("tunings", static_cast<double>(plans.size()));
    for (const auto& [line, plan] : plans) {
        const Timing time = workload.time(plan, sweep_warm_ms, b.repeats);
        if (time.ms.size() < b.repeats) end_if_interrupted();
        const double rate = tflops(counted(b, p), b.pass(), median(time.ms));
        const Json description = Json::parse(timed_plan(plan, b.pass()).describe());
        const RateCeiling most = rate_ceiling(ceilings, description["kernel"]);
        print_row(fmt::format("{:7.3f} TFLOP/s {:5.1f} % of {}  {}", rate, 100 * rate / most.tflops,
                              most.name, line));
        phase.advance();
    }
}

// The times of one problem, and how they compare, or what was measured of them before an interruption.
Json measure_one(const Bench& b, Workload& workload, const Plans& plans, const Results& results) {
    Json last;
    const Json whole = measure_against(results, [&]() -> Json {
        const Timing time = workload.time(plans, warm_ms, b.repeats);
        if (!time.ms.empty()) last = {{"time_ms", time_json(time)}};
        return time.ms.size() < b.repeats ? Json() : last;
    });
    return whole.is_null() ? last : whole;
}

void one_problem(const Bench& b, Runtime& runtime, const VkattnProblem& p, Results& results) {
    const Json description = described(b, runtime, p);
    results.require_alike(description, {{"", description["problem"]}});
    Plans plans;
    try {
        plans = make_plans(b, runtime, p, nullptr);
    } catch (const Error& error) {
        rethrow_as_usage(error);
    }
    end_if_interrupted();
    Workload workload(runtime, p, b.pass(), b.mask_fill == "random", b.kv_lengths.value_or(p.seqlen_kv),
                      b.shape.block_map);
    const Plan& plan = timed_plan(plans, b.pass());
    const Json measured = measure_one(b, workload, plans, results);
    if (measured.is_null()) end_if_interrupted();
    Result r{measured["time_ms"], 0, 0, plan.segments(), workload.submissions(), {}, {}};
    if (!stop_requested() && !b.csv)
        r.ceilings = measure_ceilings(runtime);  // behind the runs: the device's clock is up
    if (!stop_requested() && !b.csv) r.startup = measure_startup(b, runtime, p);
    r.tflops = tflops(counted(b, p), b.pass(), r.median_ms());
    r.gbps = static_cast<double>(tensor_bytes(counted(b, p))) / (r.median_ms() * 1e-3) * 1e-9;
    const Json plan_json = Json::parse(plan.describe());
    Json result = result_json(description, plan_json, r);
    if (measured.contains("compared")) result["compared"] = measured["compared"];
    if (b.attention.json)
        fmt::print("{}\n", result.dump());
    else if (b.csv)
        results.print_csv(result);
    else
        print_text(runtime.device(), plan_json, r);
    if (stop_requested()) end_if_interrupted();
    results.finish(Json::array({result}));
}

// One problem with each length of a range.
std::vector<SuiteCase> cases_of(const Bench& b, const VkattnProblem& p) {
    std::vector<SuiteCase> cases;
    const bool of_queries = !b.queries.lengths.empty();
    for (const uint32_t n : of_queries ? b.queries.lengths : b.keys.lengths) {
        VkattnProblem each = p;
        if (of_queries) each.seqlen_q = n;
        if (!of_queries || !b.shape.seqlen_kv) each.seqlen_kv = n;
        set_dense_layout(each, b.attention.bshd());
        cases.push_back({fmt::format("{} {}", of_queries ? "seqlen_q" : "seqlen_kv", n), each});
    }
    return cases;
}

void check(const Bench& b) {
    if (b.repeats == 0) throw UsageError("--repeats", "is 0, at least 1 block of runs is needed");
    if (!b.compared.empty() && b.repeats < least_compared_blocks)
        throw UsageError("--repeats", fmt::format("is {}, --compare needs {} blocks of runs at least",
                                                  b.repeats, least_compared_blocks));
    if (b.mask_fill != "visible" && b.mask_fill != "random")
        throw UsageError("--mask-fill", fmt::format("'{}' is not visible or random", b.mask_fill));
    const bool is_one = b.queries.lengths.empty() && b.keys.lengths.empty();
    if (is_one && b.suite.empty() && !b.report.empty())
        throw UsageError("--report", "is of a suite, or of a range of lengths");
    if (!b.peer.empty()) read_benched("--peer", b.peer);
    if (!b.report.empty()) check_writable("--report", b.report);
    if (is_one) return;
    if (!b.queries.lengths.empty() && !b.keys.lengths.empty())
        throw UsageError("--seqlen-kv", "is a range, and so is --seqlen-q: one of both can be one");
    if (!b.shape.mask_shape.empty())
        throw UsageError("--mask-shape", "fits one length, and there is a range");
    if (!b.sweep.empty()) throw UsageError("--sweep", "is of one length, and there is a range");
    if (b.kv_lengths) throw UsageError("--kv-lengths", "is of one length, and there is a range");
}

void prepare(const Bench& b, Runtime& runtime) {
    add_modules(runtime, b.attention.modules);
    end_if_interrupted();
    require_execution(runtime);
}

void bench(const Bench& b) {
    check(b);
    if (!b.suite.empty() && b.list) return list_suite(b.suite);
    Results results(b.attention.json, b.csv, b.compared);
    const SuiteRun run{b.attention, b.pass(), b.repeats, b.shape.block_map, b.report, b.peer};
    if (!b.suite.empty()) {
        const std::vector<SuiteCase> cases = tools::cases_of(b.suite, b.shape, b.attention);
        stop_on_signals(stopping);
        Runtime runtime = open_runtime(b.attention);
        prepare(b, runtime);
        return run_suite(runtime, b.suite, cases, run, results);
    }
    VkattnProblem p = problem();
    b.attention.apply(p);
    b.shape.apply(p);
    if (b.kv_lengths) {
        p.kv_lengths = 1;
        if (*b.kv_lengths > p.seqlen_kv)
            throw UsageError("--kv-lengths", fmt::format("{} is more than the {} keys of --seqlen-kv",
                                                         *b.kv_lengths, p.seqlen_kv));
    }
    set_dense_layout(p, b.attention.bshd());
    stop_on_signals(stopping);
    Runtime runtime = open_runtime(b.attention);
    prepare(b, runtime);
    if (!b.sweep.empty()) return sweep(b, runtime, p);
    const std::vector<SuiteCase> cases = cases_of(b, p);
    if (cases.empty()) return one_problem(b, runtime, p, results);
    run_suite(runtime, "lengths", cases, run, results);
}

}  // namespace

void add_bench(CLI::App& app) {
    CLI::App* sub =
        app.add_subcommand("bench", "How fast a problem runs, beside the device's measured ceilings");
    auto b = std::make_shared<Bench>();
    b->shape.add_to(*sub);
    b->attention.add_to(*sub);
    sub->add_option("--pass", b->pass_text,
                    "forward (default), backward or both; --kernel and --tuning are then the backward's");
    sub->add_option("--repeats", b->repeats, "Timed blocks of runs, short ones in one submission; default 20")
        ->transform(count_validator());
    sub->add_option("--mask-fill", b->mask_fill, "visible (default): hides nothing; random: hides half")
        ->needs("--mask-shape");
    CLI::Option* suite = sub->add_option("--suite", b->suite,
                                         "A table of cases instead of one: prefill, decode, llama, models or "
                                         "watchdog, of float16 unless --dtype is given");
    sub->add_flag("--list", b->list, "Only the names of the suite's cases")->needs(suite);
    for (const char* name : {"--seqlen-q", "--head-dim-qk"}) sub->get_option(name)->required(false);
    for (const char* name :
         {"--batch", "--heads-q", "--heads-kv", "--seqlen-q", "--seqlen-kv", "--head-dim-qk", "--head-dim-v",
          "--mask-shape", "--mask-type", "--kv-lengths-given", "--layout"})
        sub->get_option(name)->excludes(suite);  // the suite's cases have their own
    sub->add_option("--kv-lengths", b->kv_lengths,
                    "Keys that each batch has of --seqlen-kv, as in 2k: rates count these")
        ->transform(count_validator())
        ->excludes(suite);
    sub->add_option("--sweep", b->sweep, "A file of tunings, one a line: times each over the same tensors")
        ->excludes("--json")
        ->excludes(suite);
    sub->add_flag("--csv", b->csv, "A line of names and one for each case, separated by commas")
        ->excludes("--json")
        ->excludes("--sweep");
    sub->add_option("--compare", b->compared,
                    "A file of `vkattn bench --json`: how the times differ from those. Ends with exit code 5 "
                    "if a case "
                    "is slower by more than noise")
        ->excludes("--sweep");
    auto* report = sub->add_option("--report", b->report,
                                   "Writes a suite's results, or those of a range, as a page with plots")
                       ->excludes("--sweep");
    sub->add_option(
           "--peer", b->peer,
           "A file of tools/peers/torch_sdpa.py or `bench --suite --json`: its rates beside, in the plots")
        ->needs(report);
    for (const auto& [name, range] : {std::pair{"--seqlen-q", &b->queries}, {"--seqlen-kv", &b->keys}})
        sub->get_option(name)
            ->transform(CLI::Validator([range](std::string& text) { return range->take_from(text); }, ""))
            ->description(sub->get_option(name)->get_description() + "; 1k..256k: each twice the one before");
    sub->callback([b, sub] {
        for (const char* name : {"--seqlen-q", "--head-dim-qk"})
            if (b->suite.empty() && sub->count(name) == 0) throw UsageError(name, "is required");
        if (!b->suite.empty() && sub->count("--dtype") == 0) b->shape.dtype = "f16";
        bench(*b);
    });
}

}  // namespace vkattn::tools
