// Random problems from a seed, and how a failing one is made small.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "common.hpp"
#include "conformance.hpp"
#include "interruption.hpp"
#include "progress.hpp"

namespace vkattn::tools::conformance {
namespace {

using Clock = std::chrono::steady_clock;

// Multiplications of the oracle for a check: some tenths of a second on one core.
constexpr double most_work = 2e7;
constexpr int most_attempts = 300;  // to shrink a case
constexpr uint32_t more_seeds = 8;  // that decide about an error beyond its bound

class Random {
  public:
    explicit Random(uint64_t seed) : engine_(seed * 0x9e3779b97f4a7c15 + 1) {}
    uint32_t upto(uint32_t least, uint32_t most) {
        return least + static_cast<uint32_t>(engine_() % (uint64_t{most} - least + 1));
    }
    bool chance(uint32_t percent) { return upto(1, 100) <= percent; }
    template <class T>
    T one_of(std::initializer_list<T> all) {
        return all.begin()[upto(0, static_cast<uint32_t>(all.size()) - 1)];
    }

  private:
    std::mt19937_64 engine_;
};

// Lengths about which something is odd, more often than any.
uint32_t length(Random& r) {
    if (r.chance(5)) return r.one_of({0u, 1u, 2u});
    if (r.chance(40))
        return r.one_of({16u, 31u, 32u, 33u, 63u, 64u, 65u, 127u, 128u, 129u, 255u, 256u, 257u});
    return r.chance(70) ? r.upto(1, 140) : r.upto(141, 700);
}
uint32_t head_dim(Random& r) {
    if (r.chance(70)) return r.one_of({8u, 16u, 32u, 40u, 64u, 72u, 80u, 96u, 128u});
    return r.chance(80) ? r.upto(1, 128) : r.upto(129, 256);
}

struct Shape {
    uint32_t b, hq, hkv, sq, skv, dqk, dv;
    double work() const { return 2.0 * b * hq * sq * skv * (dqk + dv); }
};

Shape shape(Random& r) {
    for (;;) {
        Shape s{};
        s.b = r.chance(60) ? 1 : r.upto(2, 4);
        s.hkv = r.upto(1, 3);
        s.hq = s.hkv * (r.chance(50) ? 1 : r.upto(2, 5));
        s.sq = length(r);
        s.skv = length(r);
        s.dqk = head_dim(r);
        s.dv = r.chance(75) ? s.dqk : head_dim(r);
        if (s.work() <= most_work) return s;
    }
}

std::string list(Random& r, uint32_t count, int least, int most) {
    std::string text;
    for (uint32_t i = 0; i < count; i++)
        text += fmt::format("{}{}", i == 0 ? "" : ",",
                            least + static_cast<int>(r.upto(0, static_cast<uint32_t>(most - least))));
    return text;
}

void add_visibility(Random& r, const Shape& s, std::string& line) {
    const int most = static_cast<int>(s.skv) + 4;
    if (r.chance(40)) line += " causal";
    if (r.chance(20)) line += fmt::format(" window={}", list(r, 2, -1, most));
    if (r.chance(10))
        line += fmt::format(" offsets={}", list(r, s.b, -most, most));
    else if (r.chance(30))
        line += r.one_of<std::string>({" align=top-left", " align=bottom-right",
                                       fmt::format(" align=offset offset={}", list(r, 1, -most, most))});
    if (r.chance(20)) line += fmt::format(" lengths={}", list(r, s.b, -1, most));
}

void add_mask(Random& r, const Shape& s, std::string& line) {
    if (!r.chance(35) || s.sq == 0 || s.skv == 0) return;
    const bool is_float = r.chance(60);
    // One statement for each number: the order in which a call's arguments are evaluated is the compiler's.
    const uint32_t batches = r.chance(50) ? 1 : s.b;
    const uint32_t heads = r.chance(30) ? s.hkv : r.chance(50) ? 1 : s.hq;
    const uint32_t rows = r.chance(75) ? s.sq : 1;
    line += fmt::format(" mask={} mask_shape={},{},{},{}", is_float ? "float" : "bool", batches, heads, rows,
                        s.skv);
    const bool extreme = is_float && r.chance(20);
    line += " mask_fill=";
    line += extreme ? r.one_of<const char*>({"lowest", "far"})
                    : r.one_of<const char*>({"random", "banded", "rows", "tail"});
}

// Of those that may do it with such operands: a check that is refused tells nothing.
const char* kernel(Random& r, bool backward, bool has_16_bit_operands) {
    if (has_16_bit_operands && r.chance(60)) return r.one_of<const char*>({"matrix", "matrix", "matrix_khr"});
    if (r.chance(15)) return "materialized";
    return !backward && r.chance(30) ? "rows" : "tiles";
}

// No spikes for gradients: where one weight of a row is 1, dP - delta is nothing but its rounding, and the rule knows
// no bound for that. Values that make weights unequal need many rows and keys for the same reason: of few rows, one at
// most has two weights that count, and then the rule compares two numbers that luck has made.
std::string values(Random& r, const Shape& s, bool backward) {
    if (!backward) return r.one_of<const char*>({"large", "equal", "ascending", "descending", "spike"});
    if (s.sq < 32 || s.skv < 32) return "equal";
    return r.one_of<const char*>({"large", "equal", "ascending", "descending"});
}

// Gives out a type of its own, and types of blocks to key and value where their rows are whole blocks.
std::string types(Random& r, const Shape& s) {
    const auto names = oracle::block_types();
    std::string line = r.one_of<const char*>({"", " ot=f32", " ot=f16", " ot=bf16"});
    for (const auto& [word, dim] : {std::pair{" kt=", s.dqk}, {" vt=", s.dv}})
        if (dim % 32 == 0)
            line += fmt::format("{}{}", word, names[r.upto(0, static_cast<uint32_t>(names.size()) - 1)].name);
    return line + r.one_of<const char*>({"", " scales=one", " scales=heads", " scales=rows"});
}

// Gives operands of a backward float types of their own.
std::string float_types(Random& r) {
    std::string line;
    for (const char* const word : {"kt", "vt", "ot"})
        line += fmt::format(" {}={}", word, r.one_of<const char*>({"f32", "f16", "bf16"}));
    return line;
}

std::string random_line(uint64_t seed) {
    Random r(seed);
    const bool backward = r.chance(40);
    const Shape s = shape(r);
    std::string line =
        fmt::format("{} b={} hq={} hkv={} sq={} skv={} dqk={} dv={}", backward ? "backward" : "forward", s.b,
                    s.hq, s.hkv, s.sq, s.skv, s.dqk, s.dv);
    const std::string dtype = r.one_of<std::string>({"f32", "f16", "f16", "bf16"});
    line += " dtype=" + dtype;
    const bool is_rounded = dtype == "f32" && r.chance(15);
    if (is_rounded) line += r.one_of<const char*>({" precision=f16", " precision=bf16"});
    add_visibility(r, s, line);
    add_mask(r, s, line);
    if (r.chance(15)) line += fmt::format(" softcap={}", r.upto(1, 40));
    if (r.chance(12)) {
        line += fmt::format(" slopes={}", r.one_of<const char*>({"1", "0.25", "-0.125", "3"}));
        for (uint32_t i = 1; i < s.hq; i++)
            line += r.one_of<const char*>({",1", ",0.5", ",0.0625", ",-1", ",0"});
    }
    if (r.chance(12)) {
        line += fmt::format(" sinks={}", r.one_of<const char*>({"0", "2.5", "-1", "-inf"}));
        for (uint32_t i = 1; i < s.hq; i++)
            line += r.one_of<const char*>({",1", ",-30", ",9", ",0", ",-inf"});
    }
    if (r.chance(12))
        line += fmt::format(" random_map blocks={},{} map_heads={}", 16 * r.upto(1, 9), 16 * r.upto(1, 9),
                            r.chance(50) ? 1 : s.hq);
    if (r.chance(10)) line += fmt::format(" scale={}", r.one_of<const char*>({"0.05", "0.3", "-0.2", "0"}));
    if (r.chance(25)) line += " values=" + values(r, s, backward);
    if (r.chance(30)) line += " layout=bshd";
    if (r.chance(30)) line += fmt::format(" pad={}", r.upto(1, 9));
    if (r.chance(40)) line += fmt::format(" align_bytes={}", r.one_of({4u, 8u, 16u, 64u, 256u}));
    if (r.chance(50)) line += fmt::format(" kernel={}", kernel(r, backward, dtype != "f32" || is_rounded));
    if (r.chance(10)) line += fmt::format(" max_flops={}", r.one_of({100000u, 1000000u, 10000000u}));
    if (backward && r.chance(40)) line += " dlse";
    if (!backward && r.chance(10)) line += fmt::format(" splits={}", r.upto(2, 7));
    if (!backward && r.chance(8)) line += " batch_invariant";
    if (line.find("materialized") == line.npos && r.chance(12))
        line += backward ? float_types(r) : types(r, s);
    if (!backward && s.dv <= s.dqk && r.chance(6)) line += " value_in_key";
    return line + fmt::format(" seed={}", 1 + seed % 1000);
}

std::vector<std::string> words_of(const std::string& line) {
    std::vector<std::string> words;
    for (size_t begin = 0; begin <= line.size();) {
        const size_t end = std::min(line.find(' ', begin), line.size());
        words.push_back(line.substr(begin, end - begin));
        begin = end + 1;
    }
    return words;
}

// The word with a smaller number, "" where it has none that can be smaller.
std::string lowered(const std::string& word, uint32_t by) {
    const size_t equals = word.find('=');
    uint32_t number = 0;
    const char* const end = word.data() + word.size();
    if (equals == word.npos || equals + 1 == word.size()) return "";
    const auto [stop, error] = std::from_chars(word.data() + equals + 1, end, number);
    if (error != std::errc{} || stop != end || number <= 1) return "";
    const uint32_t less = by == 0 ? number / 2 : number - std::min(by, number - 1);
    return word.substr(0, equals + 1) + std::to_string(less);
}

// Adds the errors of a seed: the largest of each tensor.
void add_errors(std::map<std::string, test::Judged>& all, const Result& result) {
    for (const test::Judged& one : result.judged) {
        const auto [at, is_new] = all.try_emplace(one.tensor, one);
        oracle::Bound& bound = at->second.bound;
        bound.measured = std::max(bound.measured, one.bound.measured);
        bound.naive_error = std::max(bound.naive_error, one.bound.naive_error);
        bound.largest = std::max(bound.largest, one.bound.largest);
    }
}

// The error rule compares the largest error of a result with that of its yardstick. Both depend on luck, and among
// thousands of random problems some have much of it: all elements of a gradient's row share the rounding of its delta,
// so that a problem of one row compares two numbers, not hundreds. So where an error is beyond its bound, and nothing
// else is wrong, eight more seeds of the same problem are run, and all nine are judged as if their elements were those
// of one tensor: luck does not repeat itself, but a fault does. The report counts such problems. The cases of the case
// files have no second chance.
Result run_random(Worker& worker, const Check& check) {
    Result result = worker.run(check);
    if (result.status != Status::failed || !result.only_inexact) return result;
    std::map<std::string, test::Judged> all;
    add_errors(all, result);
    for (uint32_t i = 1; i <= more_seeds; i++) {
        Check other = check;
        other.c.seed += 1000 * i;  // lines have seeds up to 1000
        const Result found = worker.run(other);
        result.seconds += found.seconds;
        const bool is_judged = found.status == Status::passed || found.only_inexact;
        if (!is_judged || found.judged.empty()) return result;
        add_errors(all, found);
    }
    double worst = 0;
    for (const auto& [tensor, one] : all) {
        const double allowed = oracle::allowed_error(one.bound.naive_error, one.bound.largest, one.storage);
        if (!std::isfinite(allowed)) return result;
        if (one.bound.measured > 0) worst = std::max(worst, one.bound.measured / allowed);
    }
    if (worst > 1) return result;
    result.status = Status::passed;
    result.failures.clear();
    result.worst = worst;
    result.judged_by_seeds = true;
    return result;
}

}  // namespace

Check random_check(uint64_t seed) {
    Check check = check_of(random_line(seed));
    check.random = true;
    check.feature = check.pass->name + "/fuzz";
    check.name = fmt::format("{}/{}", check.feature, seed);
    return check;
}

void shrink(Worker& worker, Check& failing, Result& result) {
    Check& best = failing;
    int attempts = 0;
    const auto still_fails = [&](const std::vector<std::string>& words) {
        if (++attempts > most_attempts || stop_requested()) return false;
        try {
            Check smaller = check_of(fmt::format("{}", fmt::join(words, " ")));
            smaller.random = true;
            Result found = run_random(worker, smaller);
            if (found.status != Status::failed) return false;
            result = std::move(found);
            smaller.name = failing.name;
            smaller.feature = failing.feature;
            best = std::move(smaller);
            return true;
        } catch (const UsageError&) {  // the words no longer fit together
            return false;
        }
    };
    for (bool smaller = true; smaller && attempts < most_attempts;) {
        smaller = false;
        for (size_t i = 1; i < words_of(best.line()).size(); i++) {
            std::vector<std::string> words = words_of(best.line());
            const std::string word = words[i];
            words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
            if (still_fails(words)) {
                smaller = true;
                i--;
                continue;
            }
            words.insert(words.begin() + static_cast<std::ptrdiff_t>(i), word);
            for (const uint32_t by : {0u, 8u, 1u}) {
                words[i] = lowered(word, by);
                if (words[i].empty() || !still_fails(words)) continue;
                smaller = true;
                break;
            }
        }
    }
}

DeviceRun fuzz(const DeviceInfo& device, uint64_t seed, double seconds, bool until_failure) {
    const Clock::time_point start = Clock::now();
    const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    DeviceRun all{device, {}, {}, false, 0};
    std::mutex mutex;
    std::atomic<uint64_t> next = seed;
    std::vector<std::jthread> threads;
    const Phase phase(fmt::format("fuzzing {}", device.name));
    for (uint32_t t = workers_for(device); t-- > 0;)
        threads.emplace_back([&] {
            Worker worker(device.index);
            while (elapsed() < seconds && !stop_requested()) {
                Check check = random_check(next++);
                Result result = run_random(worker, check);
                if (result.status == Status::failed) {
                    shrink(worker, check, result);
                    if (until_failure) stop_requested() = true;
                }
                const std::lock_guard lock(mutex);
                all.checks.push_back(std::move(check));
                all.results.push_back(std::move(result));
            }
        });
    threads.clear();  // joins them
    all.interrupted = stop_requested();
    all.seconds = elapsed();
    return all;
}

}  // namespace vkattn::tools::conformance
