// The promises about running, over the cases of tests/cases/behaviour.txt.
#include "behaviour.hpp"
#include "interposer.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr const char* behaviour_text =
#include "behaviour_cases.inc"
    ;

void run_section(OnDevice& on, const Section& section, const Behaviour& behaviour) {
    const bool backward = is_backward(section.name);
    for (const Case& c : section.cases) {
        CAPTURE(c.text);
        if (c.kernel == "matrix" && !on.device.has_matrix_unit(c.problem.dtype)) {
            skip(c.text + ": " + on.device.info().name + " has no matrix unit");
            continue;
        }
        VkattnContext* const context = c.kernel == "matrix" ? on.runtime.context() : shared_context().get();
        const Report report = run_behaviour(on.device, context, behaviour, c, backward);
        if (!report.skipped.empty()) skip(c.text + ": " + report.skipped);
        CHECK(report.failures.empty());
        for (const std::string& failure : report.failures) FAIL_CHECK(failure);
    }
}

}  // namespace

TEST_CASE_FIXTURE(OnDevice, "behaviour: every promise is kept, forward and backward") {
    size_t promises = 0;
    for (const Section& section : parse_cases(behaviour_text, "behaviour.txt")) {
        CAPTURE(section.name);
        const Behaviour* const behaviour = behaviour_named(section.name);
        REQUIRE(behaviour != nullptr);
        run_section(*this, section, *behaviour);
        promises++;
    }
    CHECK_EQ(promises, 2 * behaviours().size());
}

namespace {

// A job whose results have other bits at each look, or whose second work is wrong.
class BrokenJob : public AnyJob {
  public:
    BrokenJob(VkattnContext* context, const Case& c, bool wrong)
        : AnyJob(context, c, plan_of(context, c)), inner_(make(context, c, false)), wrong_(wrong) {}
    std::unique_ptr<Work> work(Device& device, Place place, uint32_t old_content) const override {
        return std::make_unique<Run>(*this, inner_->work(device, place, old_content));
    }
    Plan another_plan() const override { return inner_->another_plan(); }

  private:
    class Run : public Work {
      public:
        Run(const BrokenJob& job, std::unique_ptr<Work> work) : job_(job), work_(std::move(work)) {}
        void record(VkCommandBuffer commands, const Plan& plan, uint32_t first,
                    uint32_t count) const override {
            work_->record(commands, plan, first, count);
        }
        std::vector<std::byte> results() const override {
            std::vector<std::byte> all = work_->results();
            if (!job_.wrong_) all.push_back(static_cast<std::byte>(job_.looks_++));
            return all;
        }
        std::string failure() const override { return job_.wrong_ ? "out is wrong" : work_->failure(); }

      private:
        const BrokenJob& job_;
        std::unique_ptr<Work> work_;
    };
    std::unique_ptr<AnyJob> inner_;
    bool wrong_;
    mutable int looks_ = 0;
};

}  // namespace

TEST_CASE_FIXTURE(OnDevice, "behaviour: a promise that is broken is noticed") {
    const Case c = parse_case("b=2 hq=4 hkv=2 sq=97 skv=113 causal max_flops=70000", "here");
    VkattnContext* const context = shared_context().get();
    const Case possible = with_possible_limit(context, c);
    for (const Behaviour& behaviour : behaviours()) {
        CAPTURE(behaviour.name);
        CHECK_EQ(behaviour.broken(device, *AnyJob::make(context, possible, false)), "");
        CHECK_NE(behaviour.broken(device, BrokenJob(context, possible, false)).find("other bits"),
                 std::string::npos);
        CHECK_NE(behaviour.broken(device, BrokenJob(context, possible, true)).find("out is wrong"),
                 std::string::npos);
    }
    CHECK(behaviour_named("no such promise") == nullptr);
}
