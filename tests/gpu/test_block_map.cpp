// The device makes block maps of masks: they are byte for byte what the definition says, and a forward reads them.
#include "api_calls.hpp"
#include "forward_run.hpp"
#include "own_work.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// Returns what a block of the map should be, by the definition.
std::byte block_of(const Case& c, const Inputs& inputs, uint64_t batch, uint64_t head, uint64_t y,
                   uint64_t z) {
    const VkattnProblem& p = c.problem;
    const uint64_t share = p.num_heads_q / p.block_map_heads;
    bool seen = false, changed = false;
    for (uint64_t b = 0; b < p.batch; b++)
        for (uint64_t h = head * share; h < (head + 1) * share; h++)
            for (uint64_t i = y * p.block_rows; i < std::min<uint64_t>((y + 1) * p.block_rows, p.seqlen_q);
                 i++)
                for (uint64_t j = z * p.block_keys;
                     j < std::min<uint64_t>((z + 1) * p.block_keys, p.seqlen_kv); j++) {
                    if (p.block_map_batches != 1 && b != batch) continue;
                    const double element = mask_at(c, inputs, b, h, i, j);
                    seen = seen || element != -INFINITY;
                    changed = changed || element != 0;
                }
    return std::byte{static_cast<uint8_t>(!seen ? 0 : changed ? 2 : 1)};
}

std::vector<std::byte> map_of(const Case& c, const Inputs& inputs) {
    const VkattnProblem& p = c.problem;
    std::vector<std::byte> map;
    for (uint64_t batch = 0; batch < p.block_map_batches; batch++)
        for (uint64_t head = 0; head < p.block_map_heads; head++)
            for (uint64_t y = 0; y < vkattn_blocks(p.seqlen_q, p.block_rows); y++)
                for (uint64_t z = 0; z < vkattn_blocks(p.seqlen_kv, p.block_keys); z++)
                    map.push_back(block_of(c, inputs, batch, head, y, z));
    return map;
}

// A case of which the device is to make the map: its own is none. Some blocks of a float mask are all 0.
struct MapCase {
    explicit MapCase(const std::string& text) : c(parse_case(text)) {
        c.block_map.clear();
        inputs = make_inputs(c);
        uint64_t place = 0;
        if (c.problem.mask == VKATTN_MASK_FLOAT)
            for (double& element : inputs.mask)
                if (element != -INFINITY && place++ / 700 % 2 == 0) element = 0;
        write_mask_image(c, inputs);
    }
    Case c;
    Inputs inputs;
};

std::vector<std::byte> made(Device& device, VkattnContext* context, const MapCase& m, Place place,
                            uint32_t alignment) {
    const Plan plan = Plan::of_block_map(context, m.c.problem);
    CHECK(plan.scratch().size_bytes == 0);
    RunMemory memory(device, place);
    VkattnForwardArgs args = forward_args();
    args.mask = memory.input("mask", m.inputs.mask_image,
                             m.c.problem.mask == VKATTN_MASK_BOOL ? 1 : element_bytes(m.c.problem.dtype));
    args.block_map = memory.output("map", map_of(m.c, m.inputs).size(), alignment);
    device.runtime().run_block_map(plan, args);
    CHECK(memory.damage() == "");
    return memory.content("map");
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "a block map is made of a mask") {
    const char* const shapes[] = {
        "b=2 h=4 sq=97 skv=199 blocks=16,32 mask_shape=97,199",
        "b=2 h=4 sq=97 skv=199 blocks=48,16 mask_shape=2,4,97,199 map_batches=2 map_heads=4",
        "b=2 h=4 sq=97 skv=199 blocks=32,48 mask_shape=2,4,97,199 map_heads=2",
        "b=3 h=4 sq=60 skv=203 blocks=16,128 mask_shape=3,1,60,203 map_batches=3 map_heads=4",
        "b=3 hq=12 hkv=4 sq=33 skv=67 blocks=16,16 mask_shape=6,33,67 map_heads=4",  // heads of the map tear them
        "b=2 h=2 sq=65 skv=131 blocks=16,16 mask_shape=2,1,1,131 map_batches=2",
        "b=2 h=2 sq=65 skv=131 blocks=16,16 mask_shape=65,1 map_heads=2",
        "h=2 sq=65 skv=131 blocks=32,16 mask_shape=65,70",  // the keys behind it are hidden
        "h=2 sq=65 skv=131 blocks=1024,2048 mask_shape=65,131",
        "b=2 h=2 sq=40 skv=57 blocks=16,16 mask_shape=2,2,40,57 ms=5000,2400,59 map_batches=2 map_heads=2",
        "h=1 sq=1 skv=1 blocks=16,16 mask_shape=1",
    };
    for (const char* const shape : shapes)
        for (const char* const type :
             {"mask=bool", "mask=float dtype=f32", "mask=float dtype=f16", "mask=float dtype=bf16"})
            for (const char* const fill : {"banded", "rows", "random"}) {
                const MapCase m(fmt::format("{} {} mask_fill={} d=8 random_map", shape, type, fill));
                CAPTURE(m.c.text);
                const std::vector<std::byte> expected = map_of(m.c, m.inputs);
                CHECK(made(device, context.get(), m, Place::end, 1) == expected);
                CHECK(made(device, context.get(), m, Place::start, 2) == expected);
            }
}

TEST_CASE_FIXTURE(Recorded, "a block map tells zeros and infinities from other numbers") {
    for (const VkattnDtype dtype : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16}) {
        const float large = dtype == VKATTN_DTYPE_FLOAT16 ? -65504.0f : -3e38f, small = 6e-5f;
        const std::pair<float, int> elements[] = {
            {0.0f, 1}, {-0.0f, 1}, {-INFINITY, 2}, {INFINITY, 2},
            {NAN, 2},  {large, 2}, {small, 2}};  // one of them among zeros
        for (const auto& [element, kind] : elements) {
            MapCase m(
                fmt::format("sq=20 skv=40 d=8 blocks=16,16 mask=float mask_shape=20,40 dtype={} random_map",
                            dtype == VKATTN_DTYPE_FLOAT32   ? "f32"
                            : dtype == VKATTN_DTYPE_FLOAT16 ? "f16"
                                                            : "bf16"));
            CAPTURE(element);
            std::ranges::fill(m.inputs.mask, 0);
            m.inputs.mask[17 * 40 + 35] = element;
            write_mask_image(m.c, m.inputs);
            std::vector<std::byte> expected(6, std::byte{1});
            expected[5] = std::byte(kind);
            CHECK(made(device, context.get(), m, Place::end, 1) == expected);
        }
    }
}

TEST_CASE_FIXTURE(Recorded, "a block map of a mask whose rows lie far apart") {
    VkattnProblem p = parse_case("sq=3 skv=40 d=8 blocks=16,16 mask=bool mask_shape=3,40 random_map").problem;
    p.mask_strides.seq = (1 << 27) + 5;
    const Buffer mask = runtime.allocate(2 * p.mask_strides.seq + 42), map = runtime.allocate(3);
    runtime.fill(mask, 0x01010101);
    const std::byte hidden{0};
    runtime.upload(mask, {&hidden, 1}, 2 * p.mask_strides.seq + 17);
    VkattnForwardArgs args = forward_args();
    args.mask = mask.address();
    args.block_map = map.address();
    runtime.run_block_map(Plan::of_block_map(context, p), args);
    std::array<std::byte, 3> got{};
    runtime.download(map, got);
    CHECK(got == std::array{std::byte{1}, std::byte{2}, std::byte{1}});
}

TEST_CASE_FIXTURE(Recorded, "a forward reads the block map that was made before it") {
    for (const char* const text :
         {"b=2 h=2 sq=97 skv=199 d=40 blocks=16,32 mask=bool mask_shape=97,199 mask_fill=banded",
          "h=4 s=130 d=64 dtype=f16 causal blocks=32,16 mask=float mask_shape=4,130,130 "
          "mask_fill=banded map_heads=2"}) {
        MapCase m(std::string(text) + " random_map");
        CAPTURE(m.c.text);
        const Expected expected = vkattn::test::expect(m.c, m.inputs);  // with no map
        const Plan map = Plan::of_block_map(context.get(), m.c.problem), plan = plan_of(context.get(), m.c);
        const std::vector<std::byte> blocks = map_of(m.c, m.inputs);
        for (const int kind : {0, 2}) CHECK(std::ranges::count(blocks, std::byte(kind)) != 0);
        m.c.block_map.resize(blocks.size());
        const Forward forward(device, plan, m.c, m.inputs);
        RunMemory memory(device);
        VkattnForwardArgs args = forward.args();
        args.block_map = memory.output("map", blocks.size(), 1);
        runtime.submit([&](VkCommandBuffer commands) {
            map.cmd_block_map(commands, args);
            barrier_between(device, commands, attention_last, attention_first);
            plan.cmd_forward(commands, args);
        });
        CHECK(memory.content("map") == blocks);
        CHECK(compare(forward.outcome(), expected) == "");
    }
}

TEST_CASE_FIXTURE(Recorded, "a block map that cannot be made is refused") {
    const Case c =
        parse_case("b=2 h=2 sq=97 skv=199 d=8 blocks=16,32 mask=bool mask_shape=97,199 random_map");
    VkattnError error;
    VkattnPlan* plan = nullptr;
    const auto field_of = [&](const VkattnProblem& p) {
        const VkattnStatus status = vkattn_block_map_create(context.get(), &p, &plan, &error);
        CHECK((status == VKATTN_INVALID_ARGUMENT && plan == nullptr));
        CHECK(vkattn_block_map_check(context.get(), &p, nullptr, &error) == status);
        return std::string(error.field);
    };
    VkattnProblem p = c.problem;
    p.mask = VKATTN_MASK_NONE;
    CHECK(field_of(p) == "problem.mask");
    p = c.problem;
    p.block_map = 0;
    CHECK(field_of(p) == "problem.block_map");
    p.block_map = 1;
    p.block_keys = 24;
    CHECK(field_of(p) == "problem.block_keys");

    const Plan map = Plan::of_block_map(context.get(), c.problem);
    const VkCommandBuffer commands = reinterpret_cast<VkCommandBuffer>(uintptr_t{16});
    VkattnForwardArgs args = forward_args();
    const auto refused = [&](auto record, const VkattnPlan* of) {
        CHECK(record(commands, of, &args, &error) == VKATTN_INVALID_ARGUMENT);
        return std::string(error.field);
    };
    CHECK(refused(vkattn_cmd_block_map, map.get()) == "args.mask");
    args.mask = 1 << 20;
    CHECK(refused(vkattn_cmd_block_map, map.get()) == "args.block_map");
    args.block_map = args.mask + 97 * 199 - 1;
    CHECK(refused(vkattn_cmd_block_map, map.get()) == "args.block_map");  // the mask's last byte
    CHECK(refused(vkattn_cmd_forward, map.get()) == "plan");
    CHECK(refused(vkattn_cmd_block_map, Plan(context, c.problem).get()) == "plan");
    for (uint32_t VkattnProblem::*extent :
         {&VkattnProblem::seqlen_q, &VkattnProblem::seqlen_kv, &VkattnProblem::batch}) {
        p = c.problem;
        p.*extent = 0;
        p.mask_extents[0] = p.mask_extents[1] = 1;
        CHECK(Plan::of_block_map(context, p).segments() == 0);
    }
    p = c.problem;
    p.seqlen_q = p.seqlen_kv = 9000;
    p.mask_extents[0] = p.mask_extents[1] = 9000;
    p.block_rows = p.block_keys = 16384;
    CHECK(vkattn_block_map_check(context.get(), &p, nullptr, &error) == VKATTN_UNSUPPORTED);
    CHECK(std::string(error.field) == "problem.block_rows");
    p.block_keys = 16;
    const VkattnPlanInfo info = check_block_map(context.get(), p);
    CHECK((std::string(info.kernel) == VKATTN_KERNEL_BLOCK_MAP && info.segments == 1));
}
