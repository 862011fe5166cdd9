#include "behaviour.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>

namespace vkattn::test {
namespace {

constexpr std::string_view backward_prefix = "backward ";

void record_all(const AnyJob& job, const Work& work, VkCommandBuffer commands) {
    work.record(commands, job.plan(), 0, job.plan().segments());
}

void run(Device& device, const AnyJob& job, const Work& work) {
    device.runtime().submit([&](VkCommandBuffer commands) { record_all(job, work, commands); });
}

// Several runs of a case: each is right, and all have the bits of the first.
class Runs {
  public:
    void add(const std::string& what, const Work& work) {
        if (!broken_.empty()) return;
        broken_ = work.failure();
        if (!broken_.empty()) broken_ = what + ": " + broken_;
        const std::vector<std::byte> results = work.results();
        if (!results_)
            results_ = results;
        else if (broken_.empty() && results != *results_)
            broken_ = what + ": other bits than at first";
    }
    const std::string& broken() const { return broken_; }

  private:
    std::optional<std::vector<std::byte>> results_;
    std::string broken_;
};

std::string reruns(Device& device, const AnyJob& job) {
    constexpr int times = 100;
    Runs runs;
    const auto work = job.work(device);
    Recorder recorder(device);
    record_all(job, *work, recorder.begin());
    recorder.end();
    for (int i = 1; i <= times; i++) {
        Recorder::submit(device, recorder.recorded());
        runs.add(fmt::format("run {} of one command buffer", i), *work);
    }
    return runs.broken();
}

std::string old_content(Device& device, const AnyJob& job) {
    Runs runs;
    // Zeros, NaNs, infinities, the largest number.
    for (const uint32_t content : {0u, 0xffffffffu, 0x7f800000u, 0xff800000u, 0x7f7fffffu}) {
        const auto work = job.work(device, Place::start, content);
        run(device, job, *work);
        runs.add(fmt::format("with {:#x} in scratch and outputs", content), *work);
    }
    return runs.broken();
}

// Memory of earlier runs stays allocated, so that later ones have other addresses.
std::string moved(Device& device, const AnyJob& job) {
    Runs runs;
    std::vector<std::unique_ptr<Work>> all;
    for (int i = 1; i <= 4; i++) {
        all.push_back(job.work(device, i % 2 == 0 ? Place::start : Place::end));
        run(device, job, *all.back());
        runs.add(fmt::format("in memory {}", i), *all.back());
    }
    return runs.broken();
}

// One plan in command buffers that are submitted at once, with nothing between them: they may overlap.
std::string command_buffers(Device& device, const AnyJob& job) {
    constexpr int count = 8;
    Recorder recorder(device);
    std::vector<std::unique_ptr<Work>> all;
    for (int i = 0; i < count; i++) {
        all.push_back(job.work(device));
        record_all(job, *all.back(), recorder.begin());
        recorder.end();
    }
    Recorder::submit(device, recorder.recorded());
    Runs runs;
    for (int i = 0; i < count; i++)
        runs.add(fmt::format("command buffer {}", i + 1), *all[static_cast<size_t>(i)]);
    return runs.broken();
}

// Threads record the same plan at the same time, and every other one a plan that it makes itself.
std::string threads(Device& device, const AnyJob& job) {
    constexpr size_t count = 4;
    std::deque<Recorder> recorders;
    std::vector<std::unique_ptr<Work>> all;
    std::vector<std::string> thrown(count);
    std::vector<Plan> own(count);
    for (size_t i = 0; i < count; i++) {
        recorders.emplace_back(device);
        all.push_back(job.work(device));
    }
    std::atomic<size_t> waiting = count;
    const auto work = [&](size_t i) {
        waiting--;
        while (waiting != 0) std::this_thread::yield();
        try {
            if (i % 2 == 1) own[i] = job.another_plan();
            const Plan& plan = i % 2 == 1 ? own[i] : job.plan();
            all[i]->record(recorders[i].begin(), plan, 0, plan.segments());
            recorders[i].end();
        } catch (const std::exception& error) {
            thrown[i] = error.what();
        }
    };
    std::vector<std::thread> running;
    for (size_t i = 0; i < count; i++) running.emplace_back(work, i);
    for (std::thread& thread : running) thread.join();
    for (const std::string& what : thrown)
        if (!what.empty()) return what;
    std::vector<VkCommandBuffer> commands;
    for (const Recorder& recorder : recorders) commands.push_back(recorder.recorded().front());
    Recorder::submit(device, commands);
    Runs runs;
    for (size_t i = 0; i < count; i++) runs.add(fmt::format("thread {}", i + 1), *all[i]);
    return runs.broken();
}

// Spread over calls, command buffers and submissions.
std::string segments(Device& device, const AnyJob& job) {
    const uint32_t all = job.plan().segments();
    struct Way {
        const char* name;
        uint32_t each;  // segments a call records
        bool own_buffer, own_submission;
    };
    Runs runs;
    for (const auto& [name, each, own_buffer, own_submission] :
         {Way{"all segments at once", all, true, true},
          {"a call each, with nothing between them", 1, false, true},
          {"a command buffer each", 1, true, false},
          {"a submission each", 1, true, true},
          {"a command buffer for every two", 2, true, false},
          {"a submission for each half", (all + 1) / 2, true, true}}) {
        const auto work = job.work(device);
        Recorder recorder(device);
        VkCommandBuffer commands = VK_NULL_HANDLE;
        for (uint32_t first = 0; first < all; first += each) {
            const bool last = first + each >= all;
            if (own_buffer || first == 0) commands = recorder.begin();
            work->record(commands, job.plan(), first, std::min(each, all - first));
            if (own_buffer || last) recorder.end();
        }
        if (own_submission)
            for (VkCommandBuffer recorded : recorder.recorded()) Recorder::submit(device, {recorded});
        else
            Recorder::submit(device, recorder.recorded());
        runs.add(name, *work);
    }
    return runs.broken();
}

// Fills, copies and another plan in the same command buffer, before and after, with the documented barriers only.
std::string foreign_work(Device& device, const AnyJob& job) {
    const Vk& vk = device.vk();
    constexpr VkDeviceSize bytes = 4096;
    const Buffer from = device.runtime().allocate(bytes), to = device.runtime().allocate(bytes);
    Case other = parse_case("h=2 sq=33 skv=71 d=40 seed=5", "behaviour.cpp");
    const auto another = AnyJob::make(device.runtime().context(), other, false);
    const auto work = job.work(device), beside = another->work(device);
    const auto barrier = [&](VkCommandBuffer commands, VkPipelineStageFlags first, VkAccessFlags written,
                             VkPipelineStageFlags second, VkAccessFlags used) {
        const VkMemoryBarrier memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, written, used};
        vk.vkCmdPipelineBarrier(commands, first, second, 0, 1, &memory, 0, nullptr, 0, nullptr);
    };
    const auto transfers = [&](VkCommandBuffer commands, uint32_t word) {
        const VkBufferCopy all{0, 0, bytes};
        vk.vkCmdFillBuffer(commands, from.handle(), 0, bytes, word);
        barrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT);
        vk.vkCmdCopyBuffer(commands, from.handle(), to.handle(), 1, &all);
    };
    device.runtime().submit([&](VkCommandBuffer commands) {
        transfers(commands, 1);
        barrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT, VKATTN_FIRST_STAGES,
                VKATTN_FIRST_ACCESS);
        record_all(*another, *beside, commands);
        record_all(job, *work, commands);
        barrier(commands, VKATTN_LAST_STAGES | VK_PIPELINE_STAGE_TRANSFER_BIT,
                VKATTN_LAST_ACCESS | VK_ACCESS_TRANSFER_READ_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT,
                VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT);
        transfers(commands, 2);
    });
    Runs runs;
    runs.add("beside foreign work", *work);
    std::vector<std::byte> words(bytes);
    device.runtime().download(to, words);
    if (words[0] != std::byte{2} || words[bytes - 4] != std::byte{2}) return "foreign work was disturbed";
    const auto alone = job.work(device);
    run(device, job, *alone);
    runs.add("alone", *alone);
    return !runs.broken().empty() ? runs.broken() : beside->failure();
}

constexpr Behaviour all_behaviours[] = {
    {"reruns", "The same command buffer gives the same bits, however often it runs.", reruns},
    {"old content", "What lay in scratch and outputs before changes no bit.", old_content},
    {"moved memory", "A plan runs on any memory, and gives the same bits there.", moved},
    {"command buffers", "Command buffers of one plan may overlap, each with memory of its own.",
     command_buffers},
    {"threads", "Threads make and record plans of one context at the same time.", threads},
    {"segments", "Segments give the same bits, however they are spread over submissions.", segments},
    {"foreign work", "Other work in the same command buffer disturbs nothing, and is not disturbed.",
     foreign_work},
};

}  // namespace

std::span<const Behaviour> behaviours() {
    return all_behaviours;
}

bool is_backward(std::string_view section) {
    return section.starts_with(backward_prefix);
}

const Behaviour* behaviour_named(std::string_view section) {
    if (is_backward(section)) section.remove_prefix(backward_prefix.size());
    const auto* found = std::ranges::find(all_behaviours, section, &Behaviour::name);
    return found != std::end(all_behaviours) ? found : nullptr;
}

Report run_behaviour(Device& device, VkattnContext* context, const Behaviour& behaviour, const Case& c,
                     bool backward) {
    Report report;
    std::unique_ptr<AnyJob> job;
    try {
        job = AnyJob::make(context, c, backward);
    } catch (const Error& e) {
        report.failures.emplace_back(e.what());
        return report;
    }
    report.segments = job->plan().segments();
    report.kernel = job->plan().info().kernel;
    report.note = job->given().note;
    if (behaviour.broken == segments && report.segments < 2) {
        report.skipped = "the least limit that this device allows cuts nothing";
        return report;
    }
    if (const std::string broken = behaviour.broken(device, *job); !broken.empty())
        report.failures.push_back(fmt::format("{} {}", behaviour.promise, broken));
    return report;
}

}  // namespace vkattn::test
