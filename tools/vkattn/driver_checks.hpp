// Checks of single features of a driver, for `vkattn conformance`: each tries one thing that the kernels rely on, with
// a small kernel of its own (shaders/driver_*.comp), many times, with other numbers each time. The host computes what
// must come of them by itself.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gpu/forward_run.hpp"
#include "own_kernel.hpp"
#include "shared/driver_checks.h"
#include "vulkan/context.hpp"
#include "vulkan/features.hpp"

namespace vkattn::tools::conformance {

using Words = std::vector<uint32_t>;
using Random32 = std::mt19937;

// Wrong is the first element of a result that is not right.
struct Wrong {
    size_t element = 0;
    std::string got, expected;
};

// DriverFacts holds what trials ask of a device.
struct DriverFacts {
    const core::DeviceCaps& caps;
    VkPhysicalDeviceSubgroupProperties subgroups{};
};

// Trial is a kernel with its constants, the numbers that each dispatch gets, and who judges what it writes.
struct Trial {
    std::string title;  // what distinguishes it from the check's other trials, as "12 x 20 invocations"
    const core::Frame* frame = nullptr;
    std::string module;
    Specialization specialization;
    shared::DriverPush push{};  // all but `from`, `to` and `slot`
    uint32_t groups = 1;
    size_t result_words = 0;
    std::function<Words(Random32&)> numbers;
    std::function<std::optional<Wrong>(const Words& numbers, std::span<const uint32_t> got)> judge;
};

struct Trials {
    std::string skipped;  // why the device cannot try it; "" if it can
    std::vector<Trial> all;
    std::shared_ptr<void> memory;  // lives as long as the trials do
};

using TrialsOf = Trials(test::Device& device, const DriverFacts& facts);
struct DriverCheck {
    const char* name;  // behind "driver/"
    TrialsOf* trials;
};
std::span<const DriverCheck> driver_checks();

// Results are filled with this word before a dispatch.
constexpr uint32_t unwritten_word = 0xdeadbee1;
// So many dispatches are submitted together, each with a slot of its own.
constexpr uint32_t driver_batch = 25;

// Dispatches the trials in turn, and tells how many dispatches were wrong.
test::Report run_driver_check(test::Device& device, const DriverCheck& check);

// Parts of trials.
std::string text_of_word(uint32_t word);
std::string text_of_float(uint32_t word);
Words random_words(Random32& random, size_t count);
// Returns the first word that differs.
std::optional<Wrong> difference(std::span<const uint32_t> got, std::span<const uint32_t> expected);
// Does the same for float32 numbers, of which 0 and -0 are alike.
std::optional<Wrong> difference_of_floats(std::span<const uint32_t> got, std::span<const float> expected);

// Trials of each check: driver_trials.cpp and driver_trials_numbers.cpp.
TrialsOf try_shared_arrays, try_matrices, try_workgroups, try_barriers, try_long_loops, try_halves,
    try_packed_halves, try_shuffles, try_denormals, try_exponents, try_far_addresses, try_dot_products;

}  // namespace vkattn::tools::conformance
