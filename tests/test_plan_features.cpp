// Classes of mask tiles, packed query rows, parts of the keys: where they are there, and how they give way. Which masks
// have classes is in golden/choices.txt (test_plan_choices.cpp).
#include <doctest/doctest.h>

#include <algorithm>

#include <fmt/format.h>

#include "plan_flaws.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;

TEST_CASE("classes: each mask head has its own, and so has a group of query heads that is torn between two") {
    const DeviceCaps& caps = profile("nvidia_h200");
    const auto class_heads = [&](const Shape& shape, uint32_t mask_heads, uint64_t head_stride) {
        VkattnProblem given = make_problem(d64, shape);
        given.mask = VKATTN_MASK_BOOL;
        given.mask_rank = 3;
        const uint32_t extents[] = {mask_heads, shape.seqlen_q, shape.seqlen_kv};
        std::copy(std::begin(extents), std::end(extents), given.mask_extents);
        given.mask_strides.head = head_stride;
        Options o;
        o.kernel = "tiles";
        const Problem p = resolved(given);
        const Plan plan = planned(caps, p, o);
        CHECK_EQ(flaw_of(caps, p, plan, o), "");
        for (const auto& d : plan.dispatches)
            if (kind_of(plan, d) == Kind::classes) return d.groups[0];
        return 0u;
    };
    constexpr uint64_t dense = VKATTN_CONTIGUOUS;
    const Shape square{2, 12, 4, 2048, 2048}, decode{2, 12, 4, 1, 65536};  // decode: tiles hold groups of 3
    for (const uint32_t heads : {1u, 2u, 3u, 4u, 6u, 12u}) {
        INFO(heads);
        CHECK_EQ(class_heads(square, heads, dense), heads);
        CHECK_EQ(class_heads(square, heads, 0), 1);
        CHECK_EQ(class_heads(decode, heads, dense), heads == 1 || heads == 2 ? heads : 4);
        CHECK_EQ(class_heads(decode, heads, 0), 1);
    }
}

TEST_CASE("packing: the query rows of a group share tiles where a head's own do not fill one") {
    Flaws flaws;
    for (const Profile& device : usable_devices())
        for (const HeadDims dims : {d64, d128, HeadDims{576, 512}})
            for (const uint32_t group : {1u, 2u, 4u, 7u, 128u})
                for (const uint32_t seqlen : {1u, 3u, 7u, 8u, 33u, 600u}) {
                    const Problem p = resolved(make_problem(dims, {2, 2 * group, 2, seqlen, 4096, true}));
                    const Plan plan = planned(device.caps, p);
                    flaws.add(flaw_of(device.caps, p, plan), device.name, p);
                    const bool packed = constant(plan.pipelines[0], "packed_heads") != 0;
                    const bool should = group > 1 && seqlen < plan.tiles.tile_q && group * seqlen <= 512;
                    flaws.add(packed == should ? "" : "packed: " + std::to_string(packed), device.name, p);
                    const uint64_t tiles = tiles_of(seqlen * (packed ? group : 1), plan.tiles.tile_q);
                    flaws.add(plan.dispatches[0].groups[0] * uint64_t{plan.dispatches[0].groups[1]} <=
                                      4 * (packed ? 1 : group) * tiles
                                  ? ""
                                  : "more workgroups than packed tiles",
                              device.name, p);
                }
}

TEST_CASE("parts: few queries and many keys are split, so that every multiprocessor has work") {
    DeviceCaps caps = profile("nvidia_h200");
    for (const uint32_t multiprocessors : {0u, 1u, 8u, 132u}) {
        caps.multiprocessors = multiprocessors;
        const uint32_t all = multiprocessors != 0 ? multiprocessors : 64;
        const Problem p = resolved(make_problem(d128, {1, 32, 8, 1, million}));
        const Plan plan = planned(caps, p);
        CHECK_EQ(flaw_of(caps, p, plan), "");
        CHECK_EQ(plan.num_splits > 1, all > 1);
        const uint64_t workgroups = uint64_t{8} * plan.num_splits;
        CHECK_GE(workgroups, all - all / 4);
        CHECK_LE(workgroups, 16 * all);
    }
    caps.multiprocessors = 132;
    const auto parts = [&](const Shape& shape, uint32_t splits = 0) {
        Options o;
        o.num_splits = splits;
        const Problem p = resolved(make_problem(d128, shape));
        const Plan plan = planned(caps, p, o);
        CHECK_EQ(flaw_of(caps, p, plan, o), "");
        return plan.num_splits;
    };
    CHECK_EQ(parts({1, 32, 32, 8192, 8192}), 1);  // enough query tiles
    CHECK_EQ(parts({1, 8, 8, 1, 256}), 1);        // too few keys
    CHECK_EQ(parts({1, 8, 8, 1, 65536}, 1), 1);   // not wanted
    CHECK_EQ(parts({1, 8, 8, 1, 65536}, 4), 4);
    CHECK_EQ(parts({1, 8, 8, 1, 0}, 4), 1);
    CHECK_EQ(parts({1, 8, 8, 1, 1}, 4), 1);
    CHECK_EQ(parts({4, 8, 8, 512, 65536}, 3), 3);  // also where nothing is gained
}

TEST_CASE("parts: asked for, down to one tile each, to 16 bits of them") {
    Flaws flaws;
    for (const char* name : {"nvidia_h200", "lavapipe", "apple_m1"})
        for (const uint32_t splits : {2u, 3u, 16u, 1000u, 65535u, 65536u, UINT32_MAX})
            for (const uint32_t keys : {2u, 97u, 5000u, million, VKATTN_MAX_SEQLEN})
                for (const bool window : {false, true}) {
                    Options o;
                    o.num_splits = splits;
                    Shape shape{1, 2, 1, 5, keys};
                    if (window) shape.window_left = keys / 3;
                    const Problem p = resolved(make_problem(d64, shape));
                    const auto plan = make_plan(profile(name), p, o);
                    if (!plan) {
                        const core::Failure& why = plan.failure();
                        const bool scratch = why.message.find("bytes of scratch") != std::string::npos;
                        flaws.add(scratch && why.status == VKATTN_UNSUPPORTED ? "" : why.message, name, p);
                        continue;
                    }
                    flaws.add(flaw_of(profile(name), p, *plan, o), fmt::format("{}, {} parts", name, splits),
                              p);
                    // No part has more than 65535 tiles.
                    const uint64_t most =
                        std::max<uint64_t>(splits, tiles_of(tiles_of(keys, plan->tiles.tile_kv), 65535));
                    flaws.add(plan->num_splits <= most ? "" : "more parts than asked for", name, p);
                }
}

TEST_CASE("parts: nobody asked for them: given up where scratch is short") {
    DeviceCaps caps = profile("nvidia_h200");
    caps.multiprocessors = 132;
    const Problem p = resolved(make_problem(d128, {1, 32, 8, 1, million}));
    for (const char* name : {"tiles", "rows"}) {
        Options o = kernel(name);
        const uint64_t scratch = planned(caps, p, o).scratch_bytes;
        REQUIRE_GT(scratch, 0);
        for (const uint64_t limit : {uint64_t{1}, scratch / 2, scratch - 1, scratch + 512}) {
            o.max_scratch_bytes = limit;
            const Plan plan = planned(caps, p, o);
            CHECK_EQ(flaw_of(caps, p, plan, o), "");
            CHECK_LE(plan.scratch_bytes, limit);
        }
        o.num_splits = 50;  // but then they are not
        o.max_scratch_bytes = 1000;
        const auto refused = make_plan(caps, p, o);
        REQUIRE_FALSE(refused);
        CHECK_EQ(refused.failure().status, VKATTN_UNSUPPORTED);
        CHECK_NE(refused.failure().message.find("bytes of scratch each, the limit is 1000"),
                 std::string::npos);
    }
}

TEST_CASE("block map: each block is made once, within the limits of the device") {
    for (const Profile& device : usable_devices())
        for (const uint32_t seqlen : {1u, 97u, 4096u, 1u << 22}) {
            VkattnProblem given = make_problem(d64, {3, 8, 4, seqlen, 2000});
            given.mask = VKATTN_MASK_BOOL;
            given.mask_rank = 1;
            given.mask_extents[0] = 2000;
            given.block_map = 1;
            given.block_rows = 16;
            given.block_keys = 48;
            given.block_map_heads = 4;
            given.block_map_batches = 3;
            const auto plan = make_block_map_plan(device.caps, resolved(given));
            REQUIRE(plan);
            CHECK(plan->scratch_bytes == 0);
            uint64_t blocks = 0;
            for (const auto& d : plan->dispatches) {
                blocks += uint64_t{d.groups[0]} * d.groups[1] * d.groups[2];
                CHECK(!d.barrier_before);
                for (size_t i = 0; i < 3; i++) CHECK(d.groups[i] <= device.caps.max_workgroup_count[i]);
                for (const auto& e : plan->dispatches) {
                    bool apart = &d == &e;
                    for (size_t i = 0; i < 3; i++)
                        apart = apart || d.cut.first[i] + d.groups[i] <= e.cut.first[i] ||
                                e.cut.first[i] + e.groups[i] <= d.cut.first[i];
                    CHECK(apart);
                }
            }
            CHECK(blocks == uint64_t{12} * ((seqlen + 15) / 16) * 42);
        }
    DeviceCaps caps = profile("nvidia_h200");
    caps.missing_kernels = 1u << static_cast<uint32_t>(core::Kernel::block_map);
    VkattnProblem given = make_problem(d64, {1, 1, 1, 64, 64});
    given.mask = VKATTN_MASK_BOOL;
    given.mask_rank = given.mask_extents[0] = 1;
    given.block_map = 1;
    CHECK(make_block_map_plan(caps, resolved(given)).failure().message == "this build has no block_map");
}
