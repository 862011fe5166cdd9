// What run and grad do on a device, and what they say of it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>

#include "inputs.hpp"
#include "progress.hpp"
#include "vkattn/runtime.hpp"

namespace vkattn::tools {

Buffer upload(Runtime& runtime, std::span<const std::byte> data);
Buffer upload(Runtime& runtime, std::span<const std::byte> data, Phase& progress);  // in bytes
NpyArray download(Runtime& runtime, const Buffer& buffer, NpyDtype dtype, std::vector<uint64_t> shape);

// Makes the block map of --block-map from-mask. With dbias, blocks in which the mask is 0 become 2, not 1, because they
// have a gradient.
void make_block_map(Runtime& runtime, Inputs& in, bool with_dbias);

// A problem's files on the device.
class DeviceInputs {
  public:
    DeviceInputs(Runtime& runtime, const Inputs& in);

    // Fills what VkattnForwardArgs and VkattnBackwardArgs share.
    template <class Args>
    void fill(Args& args) const {
        args.query = query_.address();
        args.key = key_.address();
        args.value = value_.address();
        args.mask = mask_.address();
        for (size_t i = 0; i < num_arrays; i++) ArrayOption::all()[i].set_address(args, arrays_[i].address());
    }
    uint64_t tensor_bytes() const;  // the mask's too

  private:
    Buffer query_, key_, value_, mask_;
    std::array<Buffer, num_arrays> arrays_;
};

// A plan, and what became of it.
struct Work {
    const char* name;  // for the report
    Plan plan;
    double plan_us = 0, compile_us = 0;
    VkattnRun took = run_info();

    // Plan(context, arguments...); throws UsageError as rethrow_as_usage does.
    template <class... Arguments>
    Work(const char* report_name, Runtime& runtime, const VkattnProblem& problem,
         const Arguments&... arguments);

    // Runs the plan, segment by segment, and says how far it is.
    template <class Args>
    void run(Runtime& runtime, const Args& args);
};

template <class... Arguments>
Work::Work(const char* report_name, Runtime& runtime, const VkattnProblem& problem,
           const Arguments&... arguments)
    : name(report_name) {
    const Phase phase(compiling_pipelines);
    const auto make = [&] {
        const auto start = std::chrono::steady_clock::now();
        plan = Plan(runtime.context(), problem, arguments...);
        return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
    };
    try {
        const double both_us = make();
        plan_us = make();  // its pipelines are there now
        compile_us = std::max(0.0, both_us - plan_us);
    } catch (const Error& error) {
        rethrow_as_usage(error, Shapes::of_files);
    }
}

template <class Args>
void Work::run(Runtime& runtime, const Args& args) {
    struct Watch {
        Phase phase;
        uint32_t seen = 0;
    } watch{Phase(fmt::format("running {}", name), plan.segments())};
    VkattnRun wanted = run_info();
    wanted.progress_user = &watch;
    wanted.progress = [](void* user, uint32_t done, uint32_t) {
        auto& w = *static_cast<Watch*>(user);
        w.phase.advance(done - w.seen);
        w.seen = done;
    };
    took = runtime.run(plan, args, wanted);
}

// forward: what went before it, for grad.
void print_report(const AttentionOptions& options, const Runtime& runtime, const Inputs& inputs,
                  const Work& work, uint64_t tensor_bytes, const Work* forward = nullptr);

}  // namespace vkattn::tools
