// The gate's tables: what is read is what was written, what is worse is said, what has not changed is not built, and
// the kept tables have every module.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string_view>

#include "gate/table.hpp"

using namespace vkattn::test;

namespace {

Table one(Usage usage, const std::string& name = "forward_tiles_f32 gpu-d64 64x64 elements") {
    Table t{"radv Mesa 26.1.6-1", "glslc 2026.4-1", {}};
    t.pipelines[name] = {0x0123456789abcdef, usage};
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
    table.pipelines["combine_f32 few-d64 61x61 (2)"] = {7, {0, 1, 2, 3, 4, 5, 6}};
    table.pipelines["backward_query_bf16 few-backward-d64 64x64"] = {UINT64_MAX, failed(-13)};
    const Table again = parse_table(to_text(table));
    CHECK_EQ(again.driver, table.driver);
    CHECK_EQ(again.shader_compiler, table.shader_compiler);
    CHECK_EQ(to_text(again), to_text(table));
    REQUIRE_EQ(again.pipelines.size(), 3);
    CHECK_EQ(again.pipelines.at("backward_query_bf16 few-backward-d64 64x64").usage.result, -13);
    CHECK_EQ(again.pipelines.at("combine_f32 few-d64 61x61 (2)").usage.occupancy, 5);
    CHECK(regressions(table, again).empty());
    CHECK_EQ(rows_of_other_keys(table, again), 0);
}

TEST_CASE("gate: a damaged table is no table") {
    const std::string text = to_text(one(good)), row = text.substr(text.rfind("\nf") + 1);
    const size_t last = text.find_last_not_of("0123456789 \n"), key = text.find("0123456789abcdef");
    const auto with_key = [&](const char* other) { return std::string(text).replace(key, 16, other); };
    const std::string no_compiler = std::string(text).erase(text.find("# glslc"), 17);
    REQUIRE_EQ(parse_table(with_key("0000000000000007")).pipelines.begin()->second.key, 7);
    for (const std::string& damaged :
         {std::string(), text.substr(2), no_compiler, text + row, text + "forward_tiles_f32 x\n",
          text + "combine_f32 x  1 2 3\n", text + "combine_f32 x  0123456789abcdef  failed\n",
          text.substr(0, last + 1), with_key(""), with_key("123456789abcdef"), with_key("0123456789abcdeg"),
          with_key("00123456789abcdef")})
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

namespace {

// Builds the rows of a shader tree where each pipeline is a name and a key, and counts what it builds.
struct Tree {
    TableBuilder rows{"radv Mesa 26.1.6-1", "glslc 2026.4-1"};
    std::vector<uint64_t> built;

    void add(const std::string& name, uint64_t key, const Usage& usage = good) {
        rows.add(name, key, [&] {
            built.push_back(key);
            return usage;
        });
    }
};

}  // namespace

TEST_CASE("gate: a pipeline of several rows is built once") {
    Tree tree;
    tree.add("a", 1);
    tree.add("b", 1, with(&Usage::registers, 1));
    tree.add("a", 1);
    tree.add("a", 2);
    tree.add("a", 2);
    tree.add("a", 3);
    CHECK_EQ(tree.built, std::vector<uint64_t>{1, 2, 3});
    const auto& rows = tree.rows.table().pipelines;
    REQUIRE_EQ(rows.size(), 4);
    CHECK_EQ(rows.at("b").usage.registers, good.registers);
    CHECK_EQ(rows.at("a").key, 1);
    CHECK_EQ(rows.at("a (2)").key, 2);
    CHECK_EQ(rows.at("a (3)").key, 3);
    CHECK_EQ(tree.rows.rows_kept(), 0);
    CHECK_EQ(tree.rows.built().size(), 3);
}

TEST_CASE("gate: only pipelines that have changed are built, and a regression of theirs is found") {
    Tree first;
    first.add("a", 1);
    first.add("b", 2, failed(-3));
    first.add("c", 3);
    const Table kept = parse_table(to_text(first.rows.table()));

    Tree same;
    same.rows.keep(kept);
    const Usage worse = with(&Usage::spills, 9);
    same.add("a", 1, worse);
    same.add("b", 2, worse);
    same.add("c", 3, worse);
    CHECK(same.built.empty());
    CHECK_EQ(same.rows.rows_kept(), 3);
    CHECK_EQ(to_text(same.rows.table()), to_text(kept));

    Tree edited;
    edited.rows.keep(kept);
    edited.add("a", 1, worse);
    edited.add("b", 2, worse);
    edited.add("c", 4, worse);
    edited.add("d", 5);
    CHECK_EQ(edited.built, std::vector<uint64_t>{4, 5});
    CHECK_EQ(edited.rows.rows_kept(), 2);
    CHECK_EQ(rows_of_other_keys(kept, edited.rows.table()), 2);
    CHECK_EQ(regressions(kept, edited.rows.table()),
             std::vector<std::string>{"c: spills 9, kept 0", "d: is not in the kept table"});
}

TEST_CASE("gate: a share of what has not changed is built again") {
    Tree first;
    for (const uint64_t key : {4, 5, 6, 7}) first.add(std::to_string(key), key);
    const Table kept = parse_table(to_text(first.rows.table()));

    for (const uint64_t index : {0, 1, 2}) {
        Tree again;
        again.rows.keep(kept, Share{index, 3});
        for (const uint64_t key : {4, 5, 6, 7}) again.add(std::to_string(key), key);
        CAPTURE(index);
        CHECK_EQ(again.built, index == 1   ? std::vector<uint64_t>{4, 7}
                              : index == 2 ? std::vector<uint64_t>{5}
                                           : std::vector<uint64_t>{6});
    }
}

TEST_CASE("gate: numbers are kept for the driver and the shader compiler that they were made with") {
    const Table kept = one(good);
    Table now = kept;
    CHECK_EQ(other_tools(kept, now), "");
    now.driver = "radv Mesa 26.2.0-1";
    CHECK_EQ(other_tools(kept, now),
             "the table is of radv Mesa 26.1.6-1 and glslc 2026.4-1, these are radv Mesa 26.2.0-1 and glslc "
             "2026.4-1");
    now = kept;
    now.shader_compiler = "glslc 2026.5-1";
    CHECK_NE(other_tools(kept, now), "");
}

namespace {

const std::filesystem::path kept_tables = VKATTN_TESTS_DIR "/gate/tables";

Table load(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    REQUIRE(file);
    return parse_table(std::string(std::istreambuf_iterator<char>(file), {}));
}

// Modules that no device of the gate can build, and why.
constexpr std::pair<std::string_view, const char*> in_no_table[] = {
    {"forward_matrix_f16_nv2",
     "none of these drivers offers VK_NV_cooperative_matrix2; lavapipe does, and runs it"},
    {"forward_matrix_f16_nv2_running",
     "none of these drivers offers VK_NV_cooperative_matrix2; lavapipe does, and runs it"},
    {"forward_matrix_bf16_nv2", "none of these drivers offers VK_NV_cooperative_matrix2"},
    {"forward_matrix_bf16_nv2_running", "none of these drivers offers VK_NV_cooperative_matrix2"},
    {"forward_matrix_bf16_bias",
     "the only one with bfloat16 matrices, gfx1201, has left operands and accumulators in different layouts"},
};

constexpr std::string_view all_modules[] = {
#define MODULE(name, storage, macros, needs, forms) #name,
#include "kernels.def"
};

}  // namespace

TEST_CASE("gate: the kept tables have every module, or it is known why not") {
    std::set<std::string, std::less<>> met;
    for (const auto& entry : std::filesystem::directory_iterator(kept_tables))
        for (const auto& [name, row] : load(entry.path()).pipelines)
            met.insert(name.substr(0, name.find(' ')));
    for (const std::string_view module : all_modules) {
        const auto* excused = std::find_if(std::begin(in_no_table), std::end(in_no_table),
                                           [&](const auto& e) { return e.first == module; });
        CAPTURE(module);
        CHECK_NE(met.contains(module), excused != std::end(in_no_table));
    }
    for (const std::string& module : met)
        CHECK(std::find(std::begin(all_modules), std::end(all_modules), module) != std::end(all_modules));
    for (const auto& [module, why] : in_no_table)
        CHECK(std::find(std::begin(all_modules), std::end(all_modules), module) != std::end(all_modules));
}

TEST_CASE("gate: matrix kernels are built with the layouts that devices are known to have") {
    for (const auto& [device, layout] : {std::pair{"nvk_ampere", "layout-nvidia"},
                                         {"nvk_turing", "layout-nvidia"},
                                         {"amd_gfx1201", "layout-rdna4"},
                                         {"amd_navi31", "layout-rdna3"}}) {
        CAPTURE(std::string(device));
        const Table table = load(kept_tables / (std::string(device) + ".txt"));
        size_t known = 0, unknown = 0;
        for (const auto& [name, row] : table.pipelines)
            if (name.starts_with("forward_matrix_")) ++(name.ends_with(layout) ? known : unknown);
        CHECK_EQ(known, unknown);
        CHECK_GE(known, 8);
    }
}
