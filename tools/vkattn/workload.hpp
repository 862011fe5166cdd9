// Tensors to time attention with: random, and enough sets of them that caches do not help.
#pragma once

#include <array>
#include <vector>

#include "arrays.hpp"
#include "vkattn/runtime.hpp"

namespace vkattn::tools {

enum class Pass { forward, backward, both };

// Of query, key, value and out: what attention must move at least.
uint64_t tensor_bytes(const VkattnProblem& p);

// TFLOP/s by the products that must be computed at least: forward Q K^T and P V, backward S, dP, dQ, dK and dV.
double tflops(const VkattnProblem& p, Pass pass, double ms);

struct Plans {
    Plan forward, backward;  // those that the pass needs
};

// The gradients that are timed: of a float mask, too.
VkattnBackward backward_of(const VkattnProblem& p);

// The pass's own plan has the options; the forward before a timed backward is the planner's choice.
Plans make_plans(const Runtime& runtime, const VkattnProblem& p, VkattnOptions options, Pass pass);
const Plan& timed_plan(const Plans& plans, Pass pass);

// Device milliseconds of a run: short ones one behind the other in a submission, a block, of which each is the mean.
struct Timing {
    std::vector<double> ms;  // of each block; fewer than were asked for, or none, after a request to stop
    uint32_t runs_in_block;
};

// An H200 that has idled while a pipeline was built is not at full clock after 200.
constexpr double warm_ms = 500;

// How long the device needs where a GPU needs so long: a CPU has no clock that an idle moment lowers.
double warming_time(const Runtime& runtime, double gpu_ms);

// Runs over rotating tensors, after a warm-up.
class Workload {
  public:
    // Where the problem has kv lengths, each batch has `num_keys` of the keys.
    Workload(Runtime& runtime, const VkattnProblem& p, Pass pass, bool random_mask, uint32_t num_keys,
             const std::string& block_map);
    // The backward's out and lse are the forward's; it runs before the clock does where only the backward is timed.
    Timing time(const Plans& plans, double warm_for_ms, uint32_t repeats);
    // NaN into every output; and whether any is left in those of the sets that were run.
    void poison();
    bool is_poisoned();
    uint32_t submissions() const { return submissions_; }  // of the last block

  private:
    struct Tensors {
        Buffer query, key, value, out, lse, dout, dquery, dkey, dvalue;
        bool has_out = false, ran = false;
    };
    Tensors make_tensors(const VkattnProblem& p, uint32_t seed) const;
    double run(const Plans& plans, const Buffer& scratch);
    double run_block(const Plans& plans, const Buffer& scratch, uint32_t count);
    uint32_t warm_up(const Plans& plans, const Buffer& scratch, double warm_for_ms);
    Tensors& next();
    VkattnForwardArgs forward_args(const Tensors& t, const Buffer& scratch) const;
    VkattnBackwardArgs backward_args(const Tensors& t, const Buffer& scratch) const;

    Runtime& runtime_;
    Pass pass_;
    VkattnRun forward_run_ = run_info(), backward_run_ = run_info();  // the last ones, for their pace
    std::vector<Tensors> tensors_;
    Buffer mask_, dbias_, dsinks_;
    std::array<Buffer, num_arrays> arrays_;
    size_t next_ = 0;
    uint32_t submissions_ = 0;
};

}  // namespace vkattn::tools
