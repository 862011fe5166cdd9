// Runs the checks of a driver's single features.
#include "driver_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace vkattn::tools::conformance {
namespace {

// A fault may show one time in a hundred. On a CPU a dispatch takes longer, and all checks shall take a few seconds.
constexpr uint32_t dispatches_of_gpu = 500, dispatches_of_cpu = 200;
static_assert(dispatches_of_gpu % driver_batch == 0 && dispatches_of_cpu % driver_batch == 0);

constexpr DriverCheck all_checks[] = {
    {"shared-arrays-sized-by-constants", try_shared_arrays},
    {"near-square-workgroups", try_workgroups},
    {"barriers-in-loops", try_barriers},
    {"long-loops", try_long_loops},
    {"16-bit-stores-side-by-side", try_halves},
    {"atomic-stores-of-halves", try_packed_halves},
    {"subgroup-shuffles-of-vectors", try_shuffles},
    {"matrices-across-subgroups", try_matrices},
    {"16-bit-dot-products", try_dot_products},
    {"denormals", try_denormals},
    {"exponents-and-logarithms", try_exponents},
    {"far-addresses", try_far_addresses},
};

DriverFacts facts_of(const Runtime& runtime) {
    const RuntimeHandles h = runtime.handles();
    const auto vk = core::load_instance_functions(h.get_instance_proc_addr, h.instance);
    if (!vk) throw RuntimeError(vk.failure().message);
    DriverFacts facts{runtime.context()->caps};
    facts.subgroups.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES;
    VkPhysicalDeviceProperties2 properties{};
    properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    properties.pNext = &facts.subgroups;
    vk->vkGetPhysicalDeviceProperties2(h.physical_device, &properties);
    return facts;
}

// Finding counts the dispatches of a check, and describes the first one that was wrong.
struct Finding {
    uint32_t dispatches = 0, wrong = 0;
    std::string first;

    void add(const Trial& trial, const std::optional<Wrong>& found) {
        if (found && wrong++ == 0)
            first = fmt::format("the first is number {}{}: element {} is {}, expected {}", dispatches + 1,
                                trial.title.empty() ? "" : ", " + trial.title, found->element, found->got,
                                found->expected);
        dispatches++;
    }
};

// The batch's dispatches have a slice each of two buffers, and nothing orders them.
class DriverRun {
  public:
    DriverRun(Runtime& runtime, const std::vector<Trial>& trials) : runtime_(runtime), trials_(trials) {
        for (const Trial& t : trials) {
            kernels_.push_back(std::make_unique<OwnKernel>(
                runtime, *t.frame, t.module, uint32_t{sizeof(shared::DriverPush)}, t.specialization));
            Random32 random(0);
            slice_words_ = std::max({slice_words_, t.numbers(random).size(), t.result_words});
        }
        constexpr size_t whole = 64;  // words: slices begin at multiples of 256 bytes
        slice_words_ = (slice_words_ + whole - 1) / whole * whole;
        from_ = runtime.allocate(bytes());
        to_ = runtime.allocate(bytes());
    }

    void run_batch(Finding& finding) {
        const uint32_t first = finding.dispatches;
        Words from(slice_words_ * driver_batch), to(from.size(), unwritten_word);
        std::vector<Words> numbers(driver_batch);
        for (uint32_t i = 0; i < driver_batch; i++) {
            Random32 random(first + i + 1);
            numbers[i] = trial(first + i).numbers(random);
            std::ranges::copy(numbers[i], from.begin() + static_cast<std::ptrdiff_t>(i * slice_words_));
        }
        runtime_.upload(from_, std::as_bytes(std::span(from)));
        runtime_.upload(to_, std::as_bytes(std::span(to)));
        runtime_.submit([&](VkCommandBuffer commands) {
            for (uint32_t i = 0; i < driver_batch; i++) record(commands, first + i, i);
        });
        runtime_.download(to_, std::as_writable_bytes(std::span(to)));
        for (uint32_t i = 0; i < driver_batch; i++) {
            const Trial& t = trial(first + i);
            finding.add(t, t.judge(numbers[i], std::span(to).subspan(i * slice_words_, t.result_words)));
        }
    }

  private:
    uint64_t bytes() const { return uint64_t{driver_batch} * slice_words_ * sizeof(uint32_t); }
    const Trial& trial(uint32_t dispatch) const { return trials_[dispatch % trials_.size()]; }
    void record(VkCommandBuffer commands, uint32_t dispatch, uint32_t slot) const {
        shared::DriverPush push = trial(dispatch).push;
        push.from = from_.address() + slot * slice_words_ * sizeof(uint32_t);
        push.to = to_.address() + slot * slice_words_ * sizeof(uint32_t);
        push.slot = slot;
        kernels_[dispatch % trials_.size()]->record(commands, &push, trial(dispatch).groups);
    }

    Runtime& runtime_;
    const std::vector<Trial>& trials_;
    std::vector<std::unique_ptr<OwnKernel>> kernels_;
    size_t slice_words_ = 0;
    Buffer from_, to_;
};

}  // namespace

std::span<const DriverCheck> driver_checks() {
    return all_checks;
}

test::Report run_driver_check(test::Device& device, const DriverCheck& check) {
    test::Report report;
    Runtime& runtime = device.runtime();
    const Trials trials = check.trials(device, facts_of(runtime));
    report.skipped = trials.skipped;
    if (!trials.skipped.empty()) return report;
    DriverRun run(runtime, trials.all);
    const uint32_t dispatches = runtime.device().type == "cpu" ? dispatches_of_cpu : dispatches_of_gpu;
    Finding finding;
    while (finding.dispatches < dispatches) run.run_batch(finding);
    if (finding.wrong != 0)
        report.failures.push_back(fmt::format("wrong in {} of {} dispatches; {}", finding.wrong,
                                              finding.dispatches, finding.first));
    return report;
}

std::string text_of_word(uint32_t word) {
    return fmt::format("{:#010x}{}", word, word == unwritten_word ? " (not written)" : "");
}

std::string text_of_float(uint32_t word) {
    if (word == unwritten_word) return text_of_word(word);
    return fmt::format("{} ({:#010x})", std::bit_cast<float>(word), word);
}

Words random_words(Random32& random, size_t count) {
    Words words(count);
    for (uint32_t& word : words) word = static_cast<uint32_t>(random());
    return words;
}

std::optional<Wrong> difference(std::span<const uint32_t> got, std::span<const uint32_t> expected) {
    for (size_t i = 0; i < expected.size(); i++)
        if (got[i] != expected[i]) return Wrong{i, text_of_word(got[i]), text_of_word(expected[i])};
    return {};
}

std::optional<Wrong> difference_of_floats(std::span<const uint32_t> got, std::span<const float> expected) {
    for (size_t i = 0; i < expected.size(); i++)
        if (std::bit_cast<float>(got[i]) != expected[i])
            return Wrong{i, text_of_float(got[i]), fmt::format("{}", expected[i])};
    return {};
}

}  // namespace vkattn::tools::conformance
