// The lists of kernels that choice.cpp chooses from, and the functions that plan with one of them.
#pragma once

#include "plan.hpp"

namespace vkattn::core {

// A row in a list of kernels, with the reasons why the planner takes it only if it is asked for by name (choice.cpp's
// why_opt_in). A null reason means that the planner may choose it. Inputs: the problem and, for a backward, the
// Backward.
template <class... Inputs>
struct KernelRow {
    const char* name;
    const char* opt_in_reason;        // holds always
    const char* opt_in_for_rounding;  // holds if float32 operands of the products may be rounded
    const char* opt_in_on_cpus;       // holds on CPUs in all other cases
    Result<Plan> (*make)(const DeviceCaps&, const Inputs&..., const Options&);
};
using ForwardKernel = KernelRow<Problem>;
using BackwardKernel = KernelRow<Problem, Backward>;

Result<Plan> plan_forward_rows(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_rows_dot(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_matrix_rows(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_matrix(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_matrix_khr(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_tiles(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_forward_tiles_dot(const DeviceCaps&, const Problem&, const Options&);
Result<Plan> plan_materialized(const DeviceCaps&, const Problem&, const Options&);

Result<Plan> plan_backward_tiles(const DeviceCaps&, const Problem&, const Backward&, const Options&);
Result<Plan> plan_backward_tiles_dot(const DeviceCaps&, const Problem&, const Backward&, const Options&);
Result<Plan> plan_backward_matrix(const DeviceCaps&, const Problem&, const Backward&, const Options&);
Result<Plan> plan_backward_matrix_khr(const DeviceCaps&, const Problem&, const Backward&, const Options&);
Result<Plan> plan_materialized_backward(const DeviceCaps&, const Problem&, const Backward&, const Options&);

// The refusal of a plan that needs a kernel which was left out of this build.
Failure missing_kernel(Kernel kernel);

// The type that operands of the products may be rounded to: the storage type, or the one of options.precision.
Result<VkattnDtype> operand_type(const Problem& problem, const Options& options);

}  // namespace vkattn::core
