// The gate's tables: what is read is what was written, what is worse is said, what has not changed is not built, and
// the kept tables have every module.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

#include "gate/table.hpp"
#include "plan/interfaces.hpp"

using namespace vkattn::test;

namespace {

Table one(Usage usage, const std::string& name = "forward_tiles_f32 gpu-d64 64x64 elements") {
    Table t{"radv Mesa 26.1.6-1", {}};
    t.pipelines[name] = {0x01234567, usage};
    return t;
}

Usage with_loop(uint64_t clocks) {
    Usage usage{0, 100, 0, 0, 12800, 8, 97};
    usage.has_loop = usage.has_exponents = true;
    usage.clocks = clocks;
    return usage;
}

const Usage good = with_loop(1000);

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
    Usage straight{0, 1, 2, 3, 4, 5, 6}, scores = good;
    scores.has_exponents = false;
    table.pipelines["combine_f32 few-d64 61x61 (2)"] = {7, straight};
    table.pipelines["combine_f32 few-d64 64x64"] = {7, scores};
    table.pipelines["backward_query_bf16 few-backward-d64 64x64"] = {UINT32_MAX, failed(-13)};
    const std::string text = to_text(table);
    CHECK_EQ(text.substr(text.find("backward_")), R"(backward_query_bf16
  few-backward-d64 64x64  ffffffff failed=-13
combine_f32
  few-d64 61x61 (2)  00000007 5 - spills=2 stack
  few-d64 64x64  00000007 8 1000 no-exponents
forward_tiles_f32
  gpu-d64 64x64 elements  01234567 8 1000
)");
    const Table again = parse_table(text);
    CHECK_EQ(again.driver, table.driver);
    CHECK_EQ(to_text(again), text);
    CHECK(regressions(table, again).empty());
    CHECK(regressions(again, table).empty());
}

TEST_CASE("gate: a damaged table is no table") {
    const std::string text = to_text(one(good)), row = text.substr(text.rfind("\n  ") + 1);
    const auto with_numbers = [&](const char* numbers) {
        return text.substr(0, text.find("01234567")) + numbers;
    };
    REQUIRE_EQ(parse_table(with_numbers("00000007 1 -")).pipelines.begin()->second.constants, 7);
    for (const std::string& damaged :
         {std::string(), text.substr(2), text.substr(text.find('\n') + 1), text + row, text + "  gpu-d64 x\n",
          with_numbers(""), with_numbers("1234567 8 1000"), with_numbers("0123456g 8 1000"),
          with_numbers("001234567 8 1000"), with_numbers("01234567"), with_numbers("01234567 8"),
          with_numbers("01234567 -8 1000"), with_numbers("01234567 8 fast"), with_numbers("01234567 failed="),
          with_numbers("01234567 8 1000 spills=x"), with_numbers("01234567 8 1000 stacks")})
        CHECK_THROWS_AS(parse_table(damaged), std::runtime_error);
}

TEST_CASE("gate: hashes of modules are read as they were written") {
    const Modules modules{"glslc 2026.4-1", {{"combine_f32", 7}, {"forward_tiles_f32", UINT64_MAX}}};
    const std::string text = to_text(modules);
    CHECK_EQ(text, "# glslc 2026.4-1\ncombine_f32 0000000000000007\nforward_tiles_f32 ffffffffffffffff\n");
    CHECK_EQ(to_text(parse_modules(text)), text);
    for (const std::string& damaged : {std::string(), text.substr(2), text + "combine_f32 0000000000000008\n",
                                       text + "combine_f16\n", text + "combine_f16 000000000000000g\n"})
        CHECK_THROWS_AS(parse_modules(damaged), std::runtime_error);
}

TEST_CASE("gate: a module is another one if its SPIR-V or a row of any table is another") {
    Modules kept{"", {{"forward_tiles_f32", 7}, {"combine_f32", 8}}};
    const auto with_rows = [](Modules modules, const Table& first, const Table& second) {
        modules.add_rows(first);
        modules.add_rows(second);
        return modules;
    };
    const Table table = one(good);
    Table other_constants = table, renamed = one(good, "forward_tiles_f32 gpu-d64 64x64");
    other_constants.pipelines.begin()->second.constants++;
    const Modules all = with_rows(kept, table, table);
    CHECK(all.has_same("forward_tiles_f32", with_rows(kept, table, one(with(&Usage::occupancy, 1)))));
    for (const auto& [first, second] :
         {std::pair{table, other_constants}, {other_constants, table}, {table, renamed}, {table, Table{}}}) {
        CHECK_FALSE(all.has_same("forward_tiles_f32", with_rows(kept, first, second)));
        CHECK(all.has_same("combine_f32", with_rows(kept, first, second)));
    }
    CHECK_FALSE(all.has_same("combine_f16", all));
    kept.hashes.at("forward_tiles_f32")++;
    CHECK_FALSE(all.has_same("forward_tiles_f32", with_rows(kept, table, table)));
    kept.hashes.clear();
    CHECK_THROWS_AS(kept.add_rows(table), std::runtime_error);
}

TEST_CASE("gate: a new spill, a stack, lost occupancy and a failure are worse") {
    CHECK_EQ(says(good, good), "");
    CHECK_EQ(says(good, with(&Usage::spills, 1)), "spills 1, kept 0");
    CHECK_EQ(says(with(&Usage::spills, 7), with(&Usage::spills, 8)), "spills 8, kept 7");
    CHECK_EQ(says(good, with(&Usage::stack_bytes, 64)), "keeps 64 bytes on a stack, kept none");
    CHECK_EQ(says(good, with(&Usage::occupancy, 7)), "occupancy 7, kept 8");
    CHECK_EQ(says(good, failed(-3)), "fails with VkResult -3");
    Usage usage = good;
    usage.has_exponents = false;
    CHECK_EQ(says(good, usage), "the loop that is found has no exponents any more");
    usage.has_loop = false;
    usage.clocks = 0;
    CHECK_EQ(says(good, usage), "its loop is not found any more");
    CHECK_EQ(says(usage, with_loop(1)), "a pass of its loop takes 1 clocks (none), kept 0");
    CHECK_EQ(says(good, with_loop(1031)), "a pass of its loop takes 1031 clocks (none), kept 1000");
}

TEST_CASE("gate: what is better, or does not matter, is no regression") {
    CHECK_EQ(says(with(&Usage::spills, 7), good), "");
    CHECK_EQ(says(with(&Usage::stack_bytes, 64), with(&Usage::stack_bytes, 128)), "");
    CHECK_EQ(says(good, with(&Usage::occupancy, 9)), "");
    CHECK_EQ(says(good, with(&Usage::registers, 250)), "");
    CHECK_EQ(says(good, with(&Usage::ms, 9000)), "");
    CHECK_EQ(says(failed(-3), good), "");
    CHECK_EQ(says(failed(-3), failed(-3)), "");
    CHECK_EQ(says(good, with_loop(1030)), "");
    CHECK_EQ(says(good, with_loop(500)), "");
}

TEST_CASE("gate: clocks that hardly change stay as they are kept, and 5 % more than what was built fails") {
    const auto kept_after = [](uint64_t kept, uint64_t now) {
        return bounds_of(one(with_loop(kept)), one(with_loop(now))).pipelines.begin()->second.usage.clocks;
    };
    for (const auto& [now, kept] :
         {std::pair{980, 980}, {981, 1000}, {1000, 1000}, {1030, 1000}, {1031, 1031}})
        CHECK_EQ(kept_after(1000, uint64_t(now)), kept);
    for (uint64_t kept = 1; kept < 3000; kept += 7)
        for (uint64_t now = 1; now < 3000; now += 11) {
            const uint64_t longer = now * 105 / 100 + 1;
            CHECK_NE(says(with_loop(kept_after(kept, now)), with_loop(longer)), "");
        }
    Table spills = one(with(&Usage::spills, 7));
    CHECK_EQ(to_text(bounds_of(one(good), spills)), to_text(spills));
    CHECK_EQ(to_text(bounds_of(spills, one(good))), to_text(one(good)));
    CHECK_EQ(to_text(bounds_of({}, spills)), to_text(spills));
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

// Builds the rows of a shader tree where each pipeline is a name and a key, and notes what it builds.
struct Tree {
    TableBuilder rows{"radv Mesa 26.1.6-1"};
    std::vector<uint64_t> built;

    void add(const std::string& name, const Identity& identity, const Usage& usage = good) {
        rows.add("m " + name, identity, [&] {
            built.push_back(identity.key);
            return usage;
        });
    }
};

}  // namespace

TEST_CASE("gate: a pipeline of several rows is built once") {
    Tree tree;
    tree.add("a", {1});
    tree.add("b", {1}, with(&Usage::registers, 1));
    tree.add("a", {1});
    tree.add("a", {2});
    tree.add("a", {2});
    tree.add("a", {3});
    CHECK_EQ(tree.built, std::vector<uint64_t>{1, 2, 3});
    const auto& rows = tree.rows.table().pipelines;
    REQUIRE_EQ(rows.size(), 4);
    CHECK_EQ(rows.at("m b").usage.registers, good.registers);
    CHECK_EQ(rows.at("m a").key, 1);
    CHECK_EQ(rows.at("m a (2)").key, 2);
    CHECK_EQ(rows.at("m a (3)").key, 3);
    CHECK_EQ(tree.rows.rows_kept(), 0);
    CHECK_EQ(tree.rows.built().size(), 3);
}

TEST_CASE("gate: only pipelines that have changed are built, and a regression of theirs is found") {
    Tree first;
    first.add("a", {1, 10});
    first.add("b", {2, 20}, failed(-3));
    first.add("c", {3, 30});
    const Table kept = parse_table(to_text(first.rows.table()));
    const Usage worse = with(&Usage::spills, 9);

    Tree same;
    same.rows.keep(kept);
    same.add("a", {1, 10}, worse);
    same.add("b", {2, 20}, worse);
    same.add("c", {3, 30}, worse);
    CHECK(same.built.empty());
    CHECK_EQ(same.rows.rows_kept(), 3);
    CHECK_EQ(same.rows.rows_changed(), 0);
    CHECK_EQ(to_text(same.rows.table()), to_text(kept));

    Tree edited;  // "a" has another module, "c" other constants, and "d" is new
    edited.rows.keep(kept);
    edited.add("a", {6, 10, false}, worse);
    edited.add("b", {2, 20}, worse);
    edited.add("c", {4, 31}, worse);
    edited.add("d", {5, 10});
    CHECK_EQ(edited.built, std::vector<uint64_t>{6, 4, 5});
    CHECK_EQ(edited.rows.rows_kept(), 1);
    CHECK_EQ(edited.rows.rows_changed(), 3);
    CHECK_EQ(regressions(kept, edited.rows.table()),
             std::vector<std::string>{"m a: spills 9, kept 0", "m c: spills 9, kept 0",
                                      "m d: is not in the kept table"});
}

TEST_CASE("gate: a share of what has not changed is built again") {
    Tree first;
    for (const uint64_t key : {4, 5, 6, 7}) first.add(std::to_string(key), {key});
    const Table kept = parse_table(to_text(first.rows.table()));
    const std::vector<uint64_t> built[] = {{6}, {4, 7}, {5}};
    for (const uint64_t index : {0, 1, 2}) {
        Tree again;
        again.rows.keep(kept, Share{index, 3});
        for (const uint64_t key : {4, 5, 6, 7}) again.add(std::to_string(key), {key});
        CAPTURE(index);
        CHECK_EQ(again.built, built[index]);
        CHECK_EQ(again.rows.rows_changed(), 0);
    }
}

TEST_CASE("gate: numbers are kept for the tools that they were made with") {
    CHECK_EQ(other_tools("radv Mesa 26.1.6-1", "radv Mesa 26.1.6-1"), "");
    CHECK_EQ(other_tools("glslc 2026.4-1", "glslc 2026.5-1"),
             "what is kept is of glslc 2026.4-1, this is glslc 2026.5-1");
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
    {"backward_mask_spilled_f16", "only rows for NVIDIA's own driver spill dS"},
    {"backward_mask_spilled_bf16", "only rows for NVIDIA's own driver spill dS"},
    {"backward_matrix_spilled_f16", "only rows for NVIDIA's own driver spill dS"},
    {"backward_matrix_spilled_f16_of_f32", "only rows for NVIDIA's own driver spill dS"},
    {"backward_matrix_spilled_f16_rounded", "only rows for NVIDIA's own driver spill dS"},
    {"backward_matrix_spilled_bf16", "only rows for NVIDIA's own driver spill dS"},
    {"backward_matrix_spilled_bf16_of_f32", "only rows for NVIDIA's own driver spill dS"},
};

}  // namespace

TEST_CASE("gate: the kept tables have every module, or it is known why not") {
    std::set<std::string, std::less<>> met;
    for (const auto& entry : std::filesystem::directory_iterator(kept_tables))
        for (const auto& [name, row] : load(entry.path()).pipelines)
            met.insert(name.substr(0, name.find(' ')));
    std::set<std::string, std::less<>> built;
    for (const vkattn::core::Module& module : vkattn::core::built_modules())
        built.insert(vkattn::core::name_of(vkattn::core::in_gpu_form(module)));
    for (const std::string& module : built) {
        const auto* excused = std::find_if(std::begin(in_no_table), std::end(in_no_table),
                                           [&](const auto& e) { return e.first == module; });
        CAPTURE(module);
        CHECK_NE(met.contains(module), excused != std::end(in_no_table));
    }
    for (const std::string& module : met) CHECK(built.contains(module));
    for (const auto& [module, why] : in_no_table) CHECK(built.contains(module));
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
            if (name.starts_with("forward_matrix_"))
                ++(name.find(layout) != std::string::npos ? known : unknown);
        CHECK_EQ(known, unknown);
        CHECK_GE(known, 8);
    }
}

// ---- steady loops

namespace {

// A listing of gate/loops.txt, and what the steady loop in it has.
struct Listing {
    Assembly language;
    std::string title, found, code;
    std::optional<LoopWork> work;
};

const std::vector<Listing>& listings() {
    static const std::vector<Listing> all = [] {
        const std::map<std::string, Assembly> languages{
            {"aco", Assembly::aco}, {"ir3", Assembly::ir3}, {"nak", Assembly::nak}, {"agx", Assembly::agx}};
        std::vector<Listing> read;
        std::ifstream file(VKATTN_TESTS_DIR "/gate/loops.txt");
        for (std::string line; std::getline(file, line);) {
            if (line.empty() || line.starts_with('#')) continue;
            std::istringstream words(line.substr(line.find(' ') + 1));
            if (line.starts_with("== ")) {
                read.push_back({languages.at(line.substr(3, 3)), line.substr(8), "", "", {}});
            } else if (line.starts_with("work ")) {
                LoopWork& work = read.back().work.emplace();
                words >> work.qk.multiplications >> work.qk.stages >> work.pv.multiplications >>
                    work.pv.stages;
            } else {
                (line.starts_with("found ") ? read.back().found : read.back().code) += line + "\n";
            }
        }
        return read;
    }();
    return all;
}

// The numbers of a loop that are not 0, by the names of the gate's table.
std::string found_in(const LoopCounts& loop) {
    Usage usage;
    usage.loop = loop;
    std::istringstream lines(whole_text(one(usage, "loop"), true));
    std::string driver, head, row, name, number, found = "found";
    std::getline(lines, driver);
    std::getline(lines, head);
    std::getline(lines, row);
    std::istringstream names(head.substr(head.find("pipeline"))), numbers(row);
    while (names >> name && numbers >> number)
        if (name != "pipeline" && number != "0" && number != "-" && number != "none")
            found += fmt::format(" {}={}", name, number);
    return found + "\n";
}

}  // namespace

TEST_CASE("gate: steady loops are found in what drivers print") {
    CHECK_EQ(listings().size(), 9);
    for (const Listing& l : listings()) {
        CAPTURE(l.title);
        CHECK_EQ(found_in(steady_loop(l.language, l.code, l.work)), l.found);
    }
}

TEST_CASE("gate: code without products in a loop has no steady loop") {
    for (const Assembly language : {Assembly::aco, Assembly::ir3, Assembly::nak, Assembly::agx})
        CHECK_EQ(steady_loop(language, "").multiplications(), 0);
    std::string straight = listings().front().code;
    straight.replace(straight.rfind("BB1 "), 3, "BB7");
    CHECK_EQ(steady_loop(Assembly::aco, straight).multiplications(), 0);
}

TEST_CASE("gate: the unit that takes most clocks bounds a loop") {
    LoopCounts loop;
    loop.matrix = 32;
    loop.vector = 100;
    loop.transcendental = 16;
    loop.lds_loads = {{16, 256}, {64, 76}};
    const UnitRates* const rdna3 = rates_of("AMD Radeon RX 7900 XTX (RADV NAVI31)");
    REQUIRE(rdna3 != nullptr);
    const LoopBound bound = bound_of(loop, *rdna3);
    CHECK_EQ(bound.matrix, 32 * 32);
    CHECK_EQ(bound.vector, 32 * 32 + 100 + 16);
    CHECK_EQ(bound.lds, 2 * (256 + 2 * 76));
    CHECK_EQ(std::string(bound.unit()), "matrix");
    loop.lds_loads[128] = 300;
    CHECK_EQ(std::string(bound_of(loop, *rdna3).unit()), "lds");
    CHECK(rates_of("Adreno 740") == nullptr);
}

TEST_CASE("gate: a steady loop is added to what the driver reports, from code that is known") {
    Usage usage;
    add_loop(usage, {{"Assembly", listings().front().code}, {"ACO IR", ""}}, "RADV NAVI31");
    CHECK_EQ(usage.unit, "matrix");
    CHECK_EQ(usage.clocks, 35);
    CHECK((usage.has_loop && usage.has_exponents));
    usage = {};
    add_loop(usage, {{"IR3 Assembly", "end"}}, "Turnip");
    CHECK_EQ(usage.unit, "none");
    CHECK_FALSE(usage.has_loop);
    CHECK_THROWS_AS(add_loop(usage, {{"NIR", ""}}, "RADV NAVI31"), std::runtime_error);
    CHECK_THROWS_AS(add_loop(usage, {{honeykrisp_code, "shader: MESA_SHADER_COMPUTE"}}, "Apple M1"),
                    std::runtime_error);
}

TEST_CASE("gate: all numbers can be printed") {
    Usage usage = with_loop(35);
    usage.loop.lds_loads = {{16, 1}, {64, 2}};
    const std::string whole = whole_text(one(usage), false), loops = whole_text(one(usage), true);
    CHECK_NE(whole.find("    100         0         0     12800         8        97\n"), whole.npos);
    CHECK_NE(loops.find("16:1,64:2"), loops.npos);
}
