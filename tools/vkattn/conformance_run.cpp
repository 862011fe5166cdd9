// Runs checks on a device, several at a time.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "common.hpp"
#include "conformance.hpp"
#include "gpu/backward_run.hpp"
#include "interruption.hpp"
#include "plan/quirks.hpp"
#include "progress.hpp"

namespace vkattn::tools::conformance {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr const char* planned_by_itself = "the planner chooses this kernel by itself";

struct Planned {
    VkattnStatus status = VKATTN_OK;
    VkattnError error{};
    VkattnPlanInfo info{};
};

Planned plan_of(VkattnContext* context, const test::Case& c, bool backward) {
    Planned planned;
    vkattn_plan_info_init(&planned.info);
    VkattnOptions options = c.options();
    if (backward) {
        options.num_splits = 0;  // of the forward alone
        const VkattnBackward wanted = test::backward_of(c);
        planned.status =
            vkattn_backward_check(context, &c.problem, &wanted, &options, &planned.info, &planned.error);
    } else {
        planned.status = vkattn_plan_check(context, &c.problem, &options, &planned.info, &planned.error);
    }
    return planned;
}

// Why the device does not run the check: "" if it does, or if it fails for not doing so.
std::string refusal(VkattnContext* context, const Check& check) {
    test::Case c = check.c;
    // A limit is raised if a workgroup costs more: that there is one matters here, not how low it is.
    if (c.max_dispatch_flops != 0) c.max_dispatch_flops = UINT64_MAX;
    // Every device merges as many parts as cases have, and driver checks find out by themselves.
    if (check.pass->name == "combine" || check.pass->is_of_driver) return "";
    const Planned named = plan_of(context, c, check.pass->backward);
    if (named.status != VKATTN_OK) {
        if (check.random && named.status == VKATTN_INVALID_ARGUMENT)
            return std::string("no valid problem: ") + named.error.field;
        // The planner has a kernel for every problem, unless one is named, products are to be rounded, or loops would
        // be longer than this driver lets them be.
        const bool may_refuse = c.kernel != "auto" || c.precision != VKATTN_PRECISION_STORAGE ||
                                std::string_view(named.error.message).starts_with(core::loops_end_early);
        return named.status == VKATTN_UNSUPPORTED && may_refuse ? named.error.message : "";
    }
    if (!check.forced) return "";
    c = check.c;
    c.kernel = "auto";
    const Planned own = plan_of(context, c, check.pass->backward);
    return own.status == VKATTN_OK && own.info.kernel == check.c.kernel ? planned_by_itself : "";
}

Result result_of(const test::Report& report) {
    Result result;
    result.failures = report.failures;
    result.reason = report.failures.empty() ? report.skipped : "";
    result.note = report.note;
    result.kernel = report.kernel;
    result.worst = report.worst;
    result.judged = report.judged;
    result.only_inexact = report.inexact != 0 && report.inexact == report.failures.size();
    result.status = !report.failures.empty() ? Status::failed
                    : report.skipped.empty() ? Status::passed
                                             : Status::skipped;
    return result;
}

std::vector<size_t> driver_checks_of(const std::vector<Check>& checks) {
    std::vector<size_t> all;
    for (size_t i = 0; i < checks.size(); i++)
        if (checks[i].pass->is_of_driver) all.push_back(i);
    return all;
}

// Checks in an order in which those of the driver come first, and then the features take turns: a turn has a sixteenth
// of each feature's checks, but at least one. Neighbours are alike, so a feature goes through its own in strides.
std::vector<size_t> in_turns(const std::vector<Check>& checks) {
    constexpr size_t turns = 16;
    std::map<std::string, std::vector<size_t>> features;
    for (size_t i = 0; i < checks.size(); i++)
        if (!checks[i].pass->is_of_driver) features[checks[i].feature].push_back(i);
    std::vector<size_t> order = driver_checks_of(checks);
    for (size_t turn = 0; order.size() < checks.size(); turn++)
        for (const auto& [name, own] : features) {
            const size_t count = own.size(), share = (count + turns - 1) / turns;
            size_t stride = std::max<size_t>(1, count * 5 / 8);
            while (std::gcd(stride, count) != 1) stride++;
            for (size_t i = turn * share; i < std::min(count, (turn + 1) * share); i++)
                order.push_back(own[i * stride % count]);
        }
    return order;
}

// Checks on their way to the workers: first those of the driver, then the others, of which those that share pipelines
// go to one worker. Of a run that ends with the first failure the features take turns, so that none is far from having
// had a check.
class Queue {
  public:
    Queue(const std::vector<Check>& checks, const Running& running) {
        if (running.in_order) {
            for (size_t i = 0; i < checks.size(); i++) groups_.push_back({i});
            return;
        }
        if (running.until_failure || running.in_turns) {
            for (const size_t i : in_turns(checks)) groups_.push_back({i});
            return;
        }
        for (const size_t i : driver_checks_of(checks)) groups_.push_back({i});
        const auto first_of_cases = static_cast<std::ptrdiff_t>(groups_.size());
        std::map<std::string, size_t> groups;
        for (size_t i = 0; i < checks.size(); i++) {
            if (checks[i].pass->is_of_driver) continue;
            const std::string key =
                checks[i].c.pipeline_key() + (checks[i].pass->backward ? " backward" : "");
            const auto [at, is_new] = groups.try_emplace(key, groups_.size());
            if (is_new) groups_.emplace_back();
            groups_[at->second].push_back(i);
        }
        // The largest first: none shall be left for the end, when all other workers have nothing to do.
        std::ranges::stable_sort(groups_.begin() + first_of_cases, groups_.end(), std::greater(),
                                 &std::vector<size_t>::size);
    }
    const std::vector<size_t>* next() {
        const size_t i = at_++;
        return i < groups_.size() ? &groups_[i] : nullptr;
    }

  private:
    std::vector<std::vector<size_t>> groups_;
    std::atomic<size_t> at_ = 0;
};

}  // namespace

size_t DeviceRun::count(Status status) const {
    return static_cast<size_t>(
        std::ranges::count_if(results, [&](const Result& r) { return r.ran && r.status == status; }));
}

Result Worker::run(const Check& check) {
    const Clock::time_point start = Clock::now();
    Result result;
    try {
        if (!device_) {
            RuntimeOptions options;
            options.device = std::to_string(index_);
            device_.emplace(options);
        }
        VkattnContext* const context = device_->runtime().context();
        result.reason = refusal(context, check);
        if (result.reason.empty()) result = result_of(check.pass->run(*device_, context, check.c));
    } catch (const std::exception& error) {
        result.status = Status::failed;
        result.failures.emplace_back(error.what());
        device_.reset();  // it may be lost, and the next check shall not fail for that
    }
    result.ran = true;
    result.seconds = seconds_since(start);
    return result;
}

uint32_t workers_for(const DeviceInfo& device) {
    const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
    return device.type == "cpu" ? std::min(cores, 2u)
                                : std::min(cores, 16u);  // a CPU device has threads of its own
}

namespace {

// WorkerShare is what the workers of a run share.
class WorkerShare {
  public:
    WorkerShare(DeviceRun& all, const Running& running, size_t workers)
        : all_(all), running_(running), working_(workers) {}

    // Runs a check, unless the run is over.
    void run(Worker& worker, size_t i) {
        const Check& check = all_.checks[i];
        {
            const std::lock_guard lock(mutex_);
            if (error_ || stop_requested() || (running_.is_over && running_.is_over())) return;
            if (running_.begins) running_.begins(check);
        }
        all_.results[i] = worker.run(check);
        if (running_.until_failure && all_.results[i].status == Status::failed) stop_requested() = true;
        const std::lock_guard lock(mutex_);
        if (running_.ends) running_.ends(check, all_.results[i]);
        done_++;
        changed_.notify_one();
    }
    // Keeps the first of the errors that workers throw; then no further check begins.
    void fail(std::exception_ptr error) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::move(error);
    }
    void rethrow() const {
        if (error_) std::rethrow_exception(error_);
    }
    void leave() {
        const std::lock_guard lock(mutex_);
        working_--;
        changed_.notify_one();
    }
    // Returns when all workers have left.
    void show(Phase& phase) {
        std::unique_lock lock(mutex_);
        for (size_t shown = 0; working_ != 0 || shown != done_;) {
            changed_.wait(lock, [&] { return working_ == 0 || shown != done_; });
            phase.advance(static_cast<double>(done_ - shown));
            shown = done_;
        }
    }
    size_t done() const { return done_; }

  private:
    DeviceRun& all_;
    const Running& running_;
    std::mutex mutex_;
    std::condition_variable changed_;
    size_t done_ = 0, working_;
    std::exception_ptr error_;
};

}  // namespace

DeviceRun run(const DeviceInfo& device, std::vector<Check> checks, const Running& running) {
    const Clock::time_point start = Clock::now();
    DeviceRun all{device, std::move(checks), {}, false, 0};
    all.results.resize(all.checks.size());
    Queue queue(all.checks, running);
    const size_t workers = running.workers != 0 ? running.workers : workers_for(device);
    WorkerShare share(all, running, workers);
    {
        std::vector<std::jthread> threads;
        for (size_t t = 0; t < workers; t++)
            threads.emplace_back([&] {
                try {
                    Worker worker(device.index);
                    for (const std::vector<size_t>* group = queue.next(); group != nullptr;
                         group = queue.next())
                        for (const size_t i : *group) share.run(worker, i);
                } catch (...) {
                    share.fail(std::current_exception());
                }
                share.leave();
            });
        Phase phase(fmt::format("checking {}", device.name), static_cast<double>(all.checks.size()));
        share.show(phase);
    }  // joins the threads
    share.rethrow();
    all.interrupted = share.done() != all.checks.size();
    all.seconds = seconds_since(start);
    return all;
}

}  // namespace vkattn::tools::conformance
