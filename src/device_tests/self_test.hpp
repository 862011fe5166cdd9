// The self-test: small problems through the kernels that the planner chooses on a device, judged by a float64
// reference on the host. Drivers miscompile; a kernel that is seen to be wrong is not planned any more (choose_plan),
// and the next one is tested in its place. Pure, as the planner is: src/vulkan/self_test.cpp records the tests.
//
// Tests share one set of inputs, whose elements every storage type has exactly, so that one reference serves all. Keys
// grow with their number: a row's maximum is exceeded tile after tile. Kernels of 16-bit dot products have a test more,
// of inputs whose subnormal float16 numbers count: the extension leaves these to the device, and a device that takes
// them for 0 has no such kernel then. Subnormal bfloat16 are subnormal float32, too, and may be taken for 0 anywhere.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.hpp"

namespace vkattn::core {

// Scratch that suffices for every test on every device.
constexpr uint64_t self_test_scratch_bytes = uint64_t{4} << 20;

// The shapes of the tests: several tiles of queries and of keys, none of them whole, causal, two query heads to a key
// head.
struct SelfTestShape {
    static constexpr uint32_t rows = 150, keys = 200, heads_q = 2, heads_kv = 1, head_dim = 64;
    static constexpr size_t query_elements = size_t{heads_q} * rows * head_dim;
    static constexpr size_t key_elements = size_t{heads_kv} * keys * head_dim;
    static constexpr size_t lse_elements = size_t{heads_q} * rows;
};

// Dense tensors (head, row, head dim), those of the reference too.
struct SelfTestInputs {
    std::vector<double> query, key, value, dout;
};
struct SelfTestReference {
    std::vector<double> out, lse, dquery, dkey, dvalue;
};
// Subnormal inputs have a first key that all rows see almost alone. Its score depends on subnormal elements of query
// and key, its value is subnormal, and so are the weights of all other keys, whose values are normal.
enum class SelfTestNumbers { normal, subnormal };
SelfTestInputs self_test_inputs(SelfTestNumbers numbers = SelfTestNumbers::normal);
SelfTestReference self_test_reference(const SelfTestInputs& inputs);

// One test: whether it is a backward, of which storage type, with which operands, of how many rows. A forward of one
// row takes the last row of each head: few rows have a kernel of their own. Where keys and values have a type of their
// own, which is q8_0 or float16, the test is of the modules for that.
struct SelfTest {
    bool backward = false;
    VkattnDtype dtype{};
    VkattnPrecision precision{};
    uint32_t rows = 0;
    SelfTestNumbers numbers = SelfTestNumbers::normal;
    std::string_view kernel{};  // that the test is of; "" = the planner's choice
    VkattnDtype keys = VKATTN_DTYPE_SAME;

    bool mixed() const { return keys != VKATTN_DTYPE_SAME; }
    VkattnDtype key_dtype() const { return mixed() ? keys : dtype; }
    Problem problem() const;
};

// Tests for kernels that the planner would choose on this device and that have no verdict in caps.verdicts yet, in the
// order in which they are run. Empty: all is known. The planner's choices for the tests' shapes are not all: a device
// with both matrix units and 16-bit dot products takes these for more head dims than its matrix units are for.
struct PlannedTest {
    SelfTest test;
    KernelVerdict verdict;  // whom it is about; the failure is not known yet
    uint64_t scratch_bytes = 0;
};
std::vector<PlannedTest> pending_tests(const DeviceCaps& caps);

// These are the tensors that a test wrote. judge() compares them with the reference, and returns "" or one line that
// says which element is wrong. The reference is that of the test's numbers.
struct SelfTestOutputs {
    std::vector<double> out, lse;              // of a forward
    std::vector<double> dquery, dkey, dvalue;  // of a backward
};
std::string judge(const PlannedTest& planned, const SelfTestOutputs& got, const SelfTestReference& reference);

// Elements of a storage type and float64. q8_0 has elements of the test's normal numbers exactly; it is not loaded.
std::vector<std::byte> stored(std::span<const double> values, VkattnDtype dtype);
std::vector<double> loaded(std::span<const std::byte> bytes, VkattnDtype dtype);

// The verdicts of caps as text, which contexts of later starts begin with (kept_text.hpp). A text that is not of this
// device, driver and version, or of other features, gives no verdicts.
std::string verdicts_text(const DeviceCaps& caps, std::string_view version);
std::vector<KernelVerdict> verdicts_of(const DeviceCaps& caps, std::string_view text,
                                       std::string_view version);
// One verdict as a line of that text has it.
std::string text_of(const KernelVerdict& verdict);
// True if both are about the same kernel and types.
bool is_of(const KernelVerdict& verdict, const KernelVerdict& other);

}  // namespace vkattn::core
