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

const Usage good{0, 100, 0, 0, 12800, 8, 97};

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

// ---- steady loops

namespace {

// A loop over tiles as RADV prints it: a pass multiplies, exponentiates and loads ahead. What stands for tiles in which
// something is hidden (BB3), for the last tile, which loads nothing (BB5), and for the code around it must not count.
constexpr const char* aco_loop = R"(BB0:
	v_mov_b32_e32 v0, 0                                         ; 7e000280
BB1:
	v_wmma_f32_16x16x16_f16 v[8:15], v[0:7], v[16:23], v[8:15]   ; cc404008
	ds_load_b64 v[2:3], v1                                      ; d9d80000
	ds_load_u16_d16_hi v4, v1                                   ; d9d80000
	s_cbranch_scc0 BB3                                          ; bfa10002
BB2:
	s_branch BB4                                                ; bfa00001
BB3:
	v_cndmask_b32_e64 v4, v5, v6, s1                            ; d5010004
	v_cndmask_b32_e64 v7, v8, v9, s1                            ; d5010007
BB4:
	v_exp_f32_e32 v4, v4                                        ; 7e084b04
	s_waitcnt lgkmcnt(0)                                        ; bf89fc07
	s_cbranch_scc1 BB6                                          ; bfa20002
BB5:
	s_delay_alu instid0(VALU_DEP_1)                             ; bf870001
	global_load_b128 v[20:23], v1, s[2:3]                       ; dc5e0000
BB6:
	v_dual_fmac_f32 v1, v2, v3 :: v_dual_mov_b32 v4, v5          ; c8000000
	v_dual_dot2acc_f32_f16 v1, v2, v3 :: v_dual_fmac_f32 v4, v5, v6 ; c8000000
	ds_store_b128 v1, v[20:23]                                  ; db7c0000
	s_barrier                                                   ; bfbd0000
	s_add_u32 s4, s4, 1                                         ; 80048104
	s_cbranch_scc1 BB1                                          ; bfa2fff0
BB7:
	s_endpgm                                                    ; bfb00000
)";

}  // namespace

TEST_CASE("gate: a steady loop goes where nothing is hidden, and loads ahead") {
    const LoopCounts loop = steady_loop(Assembly::aco, aco_loop);
    CHECK_EQ(loop.matrix, 1);
    CHECK_EQ(loop.fma, 2);
    CHECK_EQ(loop.dot, 1);
    CHECK_EQ(loop.transcendental, 1);
    CHECK_EQ(loop.vector, 0);  // a move beside a multiply-add takes no time
    CHECK_EQ(loop.paired, 1);  // the multiply-add beside the dot product
    CHECK_EQ(bound_of(loop, *rates_of("RADV NAVI31")).vector, 32 + 2 + 1);
    CHECK_EQ(loop.scalar, 5);  // four branches and an addition
    CHECK_EQ(loop.global_loads, 1);
    CHECK_EQ(loop.waits, 1);
    CHECK_EQ(loop.barriers, 1);
    CHECK_EQ(loop.lds_loads, std::map<uint32_t, uint64_t>{{16, 1}, {64, 1}});
    CHECK_EQ(loop.lds_stores, std::map<uint32_t, uint64_t>{{128, 1}});
}

TEST_CASE("gate: code without products in a loop has no steady loop") {
    for (const Assembly language : {Assembly::aco, Assembly::ir3, Assembly::nak, Assembly::agx})
        CHECK_EQ(steady_loop(language, "").multiplications(), 0);
    const std::string straight = std::string(aco_loop).replace(std::string(aco_loop).rfind("BB1 "), 3, "BB7");
    CHECK_EQ(steady_loop(Assembly::aco, straight).multiplications(), 0);
}

TEST_CASE("gate: the innermost loop with products and exponents is the steady one") {
    // The loop of l2 multiplies alone, as one over head dims does; that of l0 has more products, most of them outside.
    const LoopCounts loop = steady_loop(Assembly::ir3, R"(l0:
mad.f32 r0.x, r0.y, r0.z, r0.w
(rpt3)mad.f32 r1.x, r0.y, r0.z, r0.w
l1:
(ss)(sy)mad.f32 r2.x, r0.y, r0.z, r0.w
l2:
(rpt1)mad.f32 r3.x, r0.y, r0.z, r0.w
ldl.u32 r4.x, l[r5.x], 4
br !p0.x, #l2
exp2 r6.x, r7.x
(nop2) add.f r1.x, r2.x, r3.x
stl.f32 l[r5.x], r4.x, 4
br !p0.x, #l1
jump #l0
end
)");
    CHECK_EQ(loop.fma, 3);
    CHECK_EQ(loop.transcendental, 1);
    CHECK_EQ(loop.vector, 1);
    CHECK_EQ(loop.waits, 1);
    CHECK_EQ(loop.lds_loads, std::map<uint32_t, uint64_t>{{128, 1}});
    CHECK_EQ(loop.lds_stores, std::map<uint32_t, uint64_t>{{128, 1}});
}

// The loop of l4 goes block by block through a tile that was loaded outside. At l2 a tile is multiplied as a whole.
TEST_CASE("gate: the steady loop is over whole tiles, not over the blocks of others") {
    const LoopCounts loop = steady_loop(Assembly::ir3, R"(l0:
    ldg.f32 r0.x, g[r1.x], 4
    br p0.x, #l3
l2:
    (rpt3)mad.f32 r0.x, r1.x, r2.x, r0.x
    exp2 r3.x, r3.x
    jump #l6
l3:
    mov.f32f32 r4.x, r5.x
l4:
    (rpt1)mad.f32 r0.x, r1.x, r2.x, r0.x
    exp2 r3.x, r3.x
    br p0.y, #l4
l6:
    br p0.z, #l0
    end
)");
    CHECK_EQ(loop.fma, 4);
    CHECK_EQ(loop.transcendental, 1);
    CHECK_EQ(loop.global_loads, 1);
    CHECK_EQ(loop.vector, 0);
}

TEST_CASE("gate: of two loops over tiles, the one with fewer instructions is the steady one") {
    const LoopCounts loop = steady_loop(Assembly::ir3, R"(l0:
    ldg.f32 r0.x, g[r1.x], 4
    (rpt3)mad.f32 r0.x, r1.x, r2.x, r0.x
    (rpt2)mov.f32f32 r4.x, r5.x
    exp2 r3.x, r3.x
    br p0.x, #l0
l1:
    ldg.f32 r0.x, g[r1.x], 4
    (rpt3)mad.f32 r0.x, r1.x, r2.x, r0.x
    (rpt1)mov.f32f32 r4.x, r5.x
    exp2 r3.x, r3.x
    br p0.x, #l1
    end
)");
    CHECK_EQ(loop.vector, 2);
}

// l2 multiplies alone, and goes on behind the exponents, as NAK has it.
TEST_CASE("gate: a loop has the exponents that it passes, not those that stand between its ends") {
    const LoopCounts loop = steady_loop(Assembly::ir3, R"(l0:
    (rpt7)mov.f32f32 r4.x, r5.x
l2:
    ldg.f32 r0.x, g[r1.x], 4
    mad.f32 r0.x, r1.x, r2.x, r0.x
    br p0.x, #l5
l3:
    exp2 r3.x, r3.x
    mad.f32 r0.x, r1.x, r2.x, r0.x
    br p0.y, #l0
    jump #l9
l5:
    jump #l2
l9:
    end
)");
    CHECK_EQ(loop.fma, 2);
    CHECK_EQ(loop.transcendental, 1);
    CHECK_EQ(loop.vector, 8);
}

TEST_CASE("gate: a loop inside the steady one counts as often as it runs") {
    // Two stages of Q.K^T have three lines each; P.V has two copies of a loop, which share twelve multiply-adds.
    const LoopWork work{{6, 2}, {12, 1}};
    const LoopCounts loop = steady_loop(Assembly::ir3, R"(l0:
add.f r1.x, r2.x, r3.x
l1:
stl.u32 l[r5.x], r4.x, 4
l2:
mad.f32 r3.x, r0.y, r0.z, r0.w
br !p0.x, #l2
bar.g
br !p0.x, #l1
exp2 r6.x, r7.x
l3:
(rpt1)mad.f32 r3.x, r0.y, r0.z, r0.w
br !p0.x, #l3
l4:
(rpt1)mad.f32 r3.x, r0.y, r0.z, r0.w
ldl.u16 r4.x, l[r5.x], 2
br !p0.x, #l4
br !p0.x, #l0
end
)",
                                        work);
    CHECK_EQ(loop.fma, 6 + 12);
    CHECK_EQ(loop.vector, 1);
    CHECK_EQ(loop.barriers, 2);
    CHECK_EQ(loop.lds_stores, std::map<uint32_t, uint64_t>{{128, 2}});
    CHECK_EQ(loop.lds_loads, std::map<uint32_t, uint64_t>{{32, 3}});
}

TEST_CASE("gate: NAK's blocks, predicates and uniform registers") {
    const LoopCounts loop = steady_loop(Assembly::nak, R"(block.u 0 L2 [] -> {
      r0        = ffma.ftz r1 r2 r3                                     // delay=4
block.u 1 L4 [0, 2] -> {
      r4..8     = hmma.m16n8k16.f32 r8..12 r12..14 r4..8                // delay=2
      r9        = mufu.exp2.f32 r9                                      // delay=1 wr:0
      ur1       = iadd3 ur1 ur3 rZ                                      // delay=3
      r12..16   = ld.shared.strong.cta.b128 [r1]                        // delay=1
@!p0              bra pT L3                                             // delay=1
block 2 L9 [1] -> {
                  st.shared.strong.cta.b64 [r1] r4..6                   // delay=1
                  bra L4                                                // delay=1
block.u 3 L3 [1] -> {
                  exit                                                  // delay=1
)");
    CHECK_EQ(loop.matrix, 1);
    CHECK_EQ(loop.fma, 0);
    CHECK_EQ(loop.transcendental, 1);
    CHECK_EQ(loop.scalar, 1);
    CHECK_EQ(loop.vector, 0);
    CHECK_EQ(loop.lds_loads, std::map<uint32_t, uint64_t>{{128, 1}});
    CHECK_EQ(loop.lds_stores, std::map<uint32_t, uint64_t>{{64, 1}});
}

// Pascal's invocations part and meet by a stack of targets.
TEST_CASE("gate: NAK's loops before Volta") {
    const LoopCounts loop = steady_loop(Assembly::nak, R"(block.u 0 L1 [] -> {
                  pbk L5                                                // delay=13
block.u 1 L2 [0, 4] -> {
                  pcnt L2                                               // delay=13
      r9        = mufu.exp2.f32 r9                                      // delay=1
                  ssy L3                                                // delay=13
@!p0              bra pT L4                                             // delay=13
block.u 2 L6 [1] -> {
      r0        = ffma.ftz r1 r2 r3                                     // delay=4
                  sync L3                                               // delay=13
block.u 3 L4 [1] -> {
                  brk L5                                                // delay=13
block.u 4 L3 [2] -> {
      r0        = ffma.ftz r1 r2 r3                                     // delay=4
                  cont L2                                               // delay=13
block.u 5 L5 [3] -> {
                  exit                                                  // delay=1
)");
    CHECK_EQ(loop.fma, 2);
    CHECK_EQ(loop.transcendental, 1);
    CHECK_EQ(loop.vector, 0);
}

// The loop from 0x10 to 0x70 has a fast side, past which a jump goes, and a slow one behind "else"; what stands between
// 0x5c and 0x62 is executed by all, whether it is hidden or not. The program behind "stop" is shorter.
TEST_CASE("gate: Honeykrisp's masks stand for branches") {
    const LoopCounts loop = steady_loop(Assembly::agx, R"(shader: MESA_SHADER_COMPUTE
   a: 420800000000           if       0.0, 0.0, 1, feq
  10: 522c4442000c           while    r98, 4, 1, ult
  16: 20c07e150000           jmp_none 96
  1c: 520974000004           if       r58l, 0, 1, ine
  22: 20c0640b0000           jmp_none 26
  28: baf98882297c822f       ffma     $r94, $r100, $r108, r94
  30: baf98882297c822f       ffma     $r94, $r100, $r108, r94
  38: 3800                   wait     a
  3c: 420a00000000           else     0.0, 0.0, 1, feq
  42: 20c00c020000           jmp_none 14
  48: baf98882297c822f       ffma     $r94, $r100, $r108, r94
  50: 520e00000000           pop_exec 1
  56: 520974000004           if       r58l, 0, 1, ine
  5c: 8a994cd2003c           exp2     $r102, r102
  62: 520e00000000           pop_exec 1
  64: 69910802f400003c       lload    r100_r101_r102_r103, r100l, 0, i32, xyzw
  68: 29e10e02f400003c       lstore   r120, r103l, 0, i16, xy, a
  6c: 05410804cdcbf200       load     r104_r105_r106_r107, dr100, r104.sx, lsl 2, i32, xyzw, a
  70: 00c082eaffff           jmp_any  -96
  76: 520e00000000           pop_exec 1
  7c: 8800                   stop
   0: f2053300               mov      $r1, thread_index_in_threadgroup
   4: 8800                   stop
)");
    CHECK_EQ(loop.fma, 2);
    CHECK_EQ(loop.transcendental, 1);
    CHECK_EQ(loop.vector, 5);  // while, twice if, and twice pop_exec; the jump goes past "else"
    CHECK_EQ(loop.scalar, 0);
    CHECK_EQ(loop.waits, 1);
    CHECK_EQ(loop.global_loads, 1);
    CHECK_EQ(loop.lds_loads, std::map<uint32_t, uint64_t>{{128, 1}});
    CHECK_EQ(loop.lds_stores, std::map<uint32_t, uint64_t>{{32, 1}});
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

TEST_CASE("gate: a table of loops is read as it was written, and a longer loop is worse") {
    Usage usage = loop_usage_of({{"Assembly", aco_loop}, {"ACO IR", ""}}, "RADV NAVI31");
    CHECK_EQ(usage.unit, "matrix");
    CHECK_EQ(loop_usage_of({{"IR3 Assembly", "end"}}, "Turnip").unit, "none");
    CHECK_THROWS_AS(loop_usage_of({{"NIR", ""}}, "RADV NAVI31"), std::runtime_error);
    CHECK_THROWS_AS(loop_usage_of({{honeykrisp_code, "shader: MESA_SHADER_COMPUTE"}}, "Apple M1"),
                    std::runtime_error);
    Table table = one(usage);
    table.form = Form::loops;
    table.pipelines["combine_f32 few-d64 61x61"] = {7,
                                                    loop_usage_of({{"Assembly", "s_endpgm"}}, "RADV NAVI31")};
    const std::string text = to_text(table);
    const Table again = parse_table(text, Form::loops);
    CHECK_EQ(to_text(again), text);
    CHECK(again.pipelines.begin()->second.usage.loop == table.pipelines.begin()->second.usage.loop);
    CHECK(regressions(table, again).empty());
    CHECK_THROWS_AS(parse_table(std::string(text).replace(text.find("16:1"), 4, "16;1"), Form::loops),
                    std::runtime_error);
    CHECK_THROWS_AS(parse_table(to_text(one(good)), Form::loops), std::runtime_error);
    Table lost = table;
    Usage& lost_usage = lost.pipelines.at(one(usage).pipelines.begin()->first).usage;
    lost_usage.loop.transcendental = 0;
    CHECK_EQ(regressions(table, lost).size(), 1);
    lost_usage.loop = {};
    lost_usage.clocks = 0;
    CHECK_EQ(regressions(table, lost).size(), 1);
    Table longer = table;
    uint64_t& clocks = longer.pipelines.at(one(usage).pipelines.begin()->first).usage.clocks;
    clocks = usage.clocks * 105 / 100;
    CHECK(regressions(table, longer).empty());
    clocks = usage.clocks * 105 / 100 + 1;
    CHECK_EQ(regressions(table, longer).size(), 1);
}
