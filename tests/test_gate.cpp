// The gate's tables: what is read is what was written, and what is worse is said.
#include <doctest/doctest.h>

#include <stdexcept>

#include "gate/table.hpp"

using namespace vkattn::test;

namespace {

Table one(Usage usage, const std::string& name = "forward_tiles_f32 gpu-d64 64x64 elements") {
    Table t{"radv Mesa 26.1.6-1", {}};
    t.pipelines[name] = usage;
    return t;
}

constexpr Usage good{0, 100, 0, 0, 12800, 8, 97};

// The only thing that a table says of another, or "".
std::string says(const Usage& kept, const Usage& now) {
    const std::vector<std::string> all = regressions(one(kept), one(now));
    CHECK_LE(all.size(), 1);
    return all.empty() ? "" : all.front().substr(all.front().find(": ") + 2);
}

Usage with(uint64_t Usage::*field, uint64_t value, Usage usage = good) {
    usage.*field = value;
    return usage;
}

Usage failed(int64_t result) {
    Usage usage;
    usage.result = result;
    return usage;
}

}  // namespace

TEST_CASE("gate: a table is read as it was written") {
    Table table = one(good);
    table.pipelines["combine_f32 few-d64 61x61 (2)"] = {0, 1, 2, 3, 4, 5, 6};
    table.pipelines["backward_query_bf16 few-backward-d64 64x64"] = failed(-13);
    const Table again = parse_table(to_text(table));
    CHECK_EQ(again.driver, table.driver);
    CHECK_EQ(to_text(again), to_text(table));
    REQUIRE_EQ(again.pipelines.size(), 3);
    CHECK_EQ(again.pipelines.at("backward_query_bf16 few-backward-d64 64x64").result, -13);
    CHECK_EQ(again.pipelines.at("combine_f32 few-d64 61x61 (2)").occupancy, 5);
    CHECK(regressions(table, again).empty());
}

TEST_CASE("gate: a damaged table is no table") {
    const std::string text = to_text(one(good));
    const size_t last = text.find_last_not_of("0123456789 \n");
    for (const std::string& damaged :
         {std::string(), text.substr(2), text + text.substr(text.rfind("\nf") + 1),
          text + "forward_tiles_f32 x\n", text + "combine_f32 x  1 2 3\n", text + "combine_f32 x  failed\n",
          text.substr(0, last + 1)})
        CHECK_THROWS_AS(parse_table(damaged), std::runtime_error);
}

TEST_CASE("gate: a new spill, a stack, lost occupancy and a failure are worse") {
    CHECK_EQ(says(good, good), "");
    CHECK_EQ(says(good, with(&Usage::spills, 1)), "spills 1, kept 0");
    CHECK_EQ(says(with(&Usage::spills, 7), with(&Usage::spills, 8)), "spills 8, kept 7");
    CHECK_EQ(says(good, with(&Usage::stack_bytes, 64)), "keeps 64 bytes on a stack, kept none");
    CHECK_EQ(says(good, with(&Usage::occupancy, 7)), "occupancy 7, kept 8");
    CHECK_EQ(says(good, failed(-3)), "fails with VkResult -3");
}

TEST_CASE("gate: what is better, or does not matter, is no regression") {
    CHECK_EQ(says(with(&Usage::spills, 7), good), "");
    CHECK_EQ(says(with(&Usage::stack_bytes, 64), with(&Usage::stack_bytes, 128)), "");
    CHECK_EQ(says(good, with(&Usage::occupancy, 9)), "");
    CHECK_EQ(says(good, with(&Usage::registers, 250)), "");
    CHECK_EQ(says(good, with(&Usage::ms, 9000)), "");
    CHECK_EQ(says(failed(-3), good), "");
    CHECK_EQ(says(failed(-3), failed(-3)), "");
}

TEST_CASE("gate: a kept table is of the same pipelines") {
    const Table kept = one(good, "a"), now = one(good, "b");
    CHECK_EQ(regressions(kept, now),
             std::vector<std::string>{"b: is not in the kept table", "a: is in the kept table only"});
}

TEST_CASE("gate: numbers of each driver, by its own words") {
    CHECK_EQ(usage_of({{"VGPRs", 96},
                       {"Spilled SGPRs", 1},
                       {"Spilled VGPRs", 2},
                       {"Scratch size", 256},
                       {"LDS size", 512},
                       {"Subgroups per SIMD", 10}},
                      1)
                 .spills,
             3);
    CHECK_EQ(usage_of({{"Registers used", 48}, {"STP Count", 4}, {"Max Waves Per Core", 2}}, 7).shared_bytes,
             7);
    CHECK_EQ(
        usage_of({{"Number of GPRs", 255}, {"Spills to memory", 5}, {"SLM size", 20}, {"Max warps/SM", 8}}, 0)
            .stack_bytes,
        20);
    CHECK_EQ(usage_of({{"GPRs", 255}, {"Spills", 6}, {"Scratch", 0}, {"Threads", 384}}, 0).occupancy, 384);
    CHECK_THROWS_AS(usage_of({{"Registers", 96}}, 0), std::runtime_error);
    CHECK_THROWS_AS(usage_of({{"VGPRs", 96}, {"Subgroups per SIMD", 10}}, 0), std::runtime_error);
}
