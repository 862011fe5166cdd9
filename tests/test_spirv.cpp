// The embedded modules: each is SPIR-V without names, ids come back from distances, and of a frame that is not whole or
// has been changed nothing is taken.
#include <doctest/doctest.h>
#include <zstd.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "vulkan/pipeline_constants.hpp"
#include "vulkan/spirv.hpp"
#include "vulkan/spirv_ids.hpp"

using namespace vkattn::core;

namespace {

using Bytes = std::vector<uint8_t>;

Bytes compressed(std::span<const uint8_t> bytes, std::span<const uint8_t> prefix = {}) {
    Bytes out(ZSTD_compressBound(bytes.size()));
    ZSTD_CCtx* context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as the build does
    ZSTD_CCtx_refPrefix(context, prefix.data(), prefix.size());
    const size_t length = ZSTD_compress2(context, out.data(), out.size(), bytes.data(), bytes.size());
    ZSTD_freeCCtx(context);
    REQUIRE_EQ(ZSTD_isError(length), 0);
    out.resize(length);
    return out;
}

std::span<const uint8_t> bytes_of(const Spirv& words) {
    return {reinterpret_cast<const uint8_t*>(words.data()), words.size() * sizeof(uint32_t)};
}

Bytes packed(Spirv words, std::span<const uint8_t> prefix = {}) {
    REQUIRE(ids_to_distances(words));
    return compressed(bytes_of(words), prefix);
}

// A header and instructions of 1 to 8 words. A sixteenth of the operands are any words below 2^31, the others are ids
// as modules have them: a new one, one of the last, or one of a type. The first function begins after a quarter.
Spirv some_module(size_t count) {
    Spirv words(count);
    uint32_t state = 1, next = 1;
    const auto random = [&](uint32_t below) {
        return static_cast<uint32_t>(uint64_t{state = state * 1664525 + 1013904223} * below >> 32);
    };
    const auto operand = [&]() -> uint32_t {
        const uint32_t kind = random(16);
        return kind == 0  ? random(1u << 31)
               : kind < 5 ? next++
                          : random(kind < 10 ? next : std::min(next, 40u));
    };
    for (size_t at = 5; at < count;) {
        const uint32_t length = std::min(static_cast<uint32_t>(count - at), 1 + random(8));
        words[at] = length << 16 | (at > count / 4 ? 54 + random(200) : random(50));
        for (const size_t end = at++ + length; at < end; at++) words[at] = operand();
    }
    return words;
}

// One instruction before all functions, whose operands compress neither to nothing nor not at all.
Spirv long_instruction(uint32_t count) {
    Spirv words(count);
    uint32_t state = 1;
    for (uint32_t& word : words)
        for (int i = 0; i < 4; i++) word = word << 8 | (state = state * 1664525 + 1013904223) >> 29;
    words[5] = (count - 5) << 16;
    return words;
}

// The bytes of a frame as the library has it, in words that the compressor has not filled whole.
struct Embedded {
    explicit Embedded(std::span<const uint8_t> bytes, const Frame* prefix = nullptr)
        : words(bytes.size() / sizeof(uint64_t) + 1), frame{words.data(), bytes.size(), prefix} {
        std::ranges::copy(bytes, reinterpret_cast<uint8_t*>(words.data()));
    }
    Embedded(const Embedded&) = delete;
    Embedded& operator=(const Embedded&) = delete;
    std::vector<uint64_t> words;
    Frame frame;
};

Spirv decompress(std::span<const uint8_t> bytes) {
    return decompress(Embedded(bytes).frame, "some_module");
}

bool is_refused(std::span<const uint8_t> bytes) {
    try {
        decompress(bytes);
    } catch (const std::runtime_error& e) {
        return std::string(e.what()).find("module some_module is damaged") != std::string::npos;
    }
    return false;
}

// Finds how deep the calls below main are nested. Words of the SPIR-V specification, section 3.49: 15 is OpEntryPoint,
// 54 OpFunction, 57 OpFunctionCall.
size_t call_depth(const Spirv& words) {
    std::map<uint32_t, std::set<uint32_t>> calls;
    uint32_t entry = 0, function = 0;
    for (size_t at = 5; at < words.size(); at += words[at] >> 16) {
        const uint32_t opcode = words[at] & 0xffff;
        if (opcode == 15) entry = words[at + 2];
        if (opcode == 54) function = words[at + 2];
        if (opcode == 57) calls[function].insert(words[at + 3]);
    }
    const auto depth_below = [&](const auto& self, uint32_t caller) -> size_t {
        size_t depth = 0;
        for (const uint32_t callee : calls[caller]) depth = std::max(depth, 1 + self(self, callee));
        return depth;
    };
    return depth_below(depth_below, entry);
}

}  // namespace

TEST_CASE("spirv: what was packed comes back") {
    for (const size_t count : {size_t{5}, size_t{6}, size_t{1000}, size_t{300000}}) {
        const Spirv words = some_module(count);
        CHECK_EQ(decompress(packed(words)), words);
    }
    // The densest that there is: one instruction over and over.
    CHECK_EQ(decompress(packed(Spirv(1 << 20, 1 << 16))).size(), 1u << 20);
}

TEST_CASE("spirv: a module comes back from its prefix, and not from another one") {
    const Spirv prefix = some_module(3000);
    Spirv words = prefix;
    words.insert(words.end(), {2u << 16 | 60, 7});
    Spirv packed_prefix = prefix;
    REQUIRE(ids_to_distances(packed_prefix));
    const Bytes alone = packed(words), with_prefix = packed(words, bytes_of(packed_prefix));
    CHECK_LT(with_prefix.size(), alone.size() / 8);
    const Embedded first(packed(prefix)), other(packed(some_module(2000))), cut(Bytes(100));
    CHECK_EQ(decompress(Embedded(with_prefix, &first.frame).frame, "some_module"), words);
    for (const Frame* wrong : {&other.frame, &cut.frame, static_cast<const Frame*>(nullptr)})
        CHECK_THROWS_WITH_AS(decompress(Embedded(with_prefix, wrong).frame, "some_module"),
                             doctest::Contains("module some_module is damaged"), std::runtime_error);
}

TEST_CASE("spirv: ids of functions are distances from the id that appears next") {
    constexpr uint32_t op_constant = 4u << 16 | 43, op_function = 5u << 16 | 54, op_any = 4u << 16 | 128;
    const auto with_header = [](Spirv body) {
        body.insert(body.begin(), {1, 2, 3, 4, 5});
        return body;
    };
    const Spirv ids = with_header(
        {op_constant, 1, 2, 3, op_function, 1, 4, 0, 5, op_any, 1, 6, 4, op_any, 9, 0x7fffffff, 7});
    // 1 to 3 come before functions, also where 3 is a literal; at the first function the next id is 4. In the last
    // instruction, 9 comes after the next id, which is 7.
    const Spirv distances = with_header(
        {op_constant, 1, 2, 3, op_function, 2, 1, 0, 1, op_any, 2, 1, 7, op_any, 18, 0xfffffffe, 1});
    Spirv words = ids;
    CHECK(ids_to_distances(words));
    CHECK_EQ(words, distances);
    CHECK(distances_to_ids(words));
    CHECK_EQ(words, ids);
}

TEST_CASE("spirv: a literal that would be read as a distance is refused, and others are not") {
    constexpr uint32_t op_function = 5u << 16 | 54;
    const auto with_literal = [](uint32_t literal) {
        return Spirv{1, 2, 3, 4, 5, op_function, 1, 2, 3, literal};
    };
    for (const uint32_t literal : {0u, 0x7fffffffu, 0x80000004u, 0xffffffffu}) {
        Spirv words = with_literal(literal);
        CHECK(ids_to_distances(words));
        CHECK(distances_to_ids(words));
        CHECK_EQ(words, with_literal(literal));
    }
    for (const uint32_t literal : {0x80000000u, 0x80000003u}) {
        Spirv words = with_literal(literal);
        CHECK_FALSE(ids_to_distances(words));
    }
}

TEST_CASE("spirv: a frame that is cut off anywhere is refused") {
    const Bytes whole = packed(long_instruction(200));
    for (size_t length = 0; length < whole.size(); length++)
        CHECK(is_refused(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length))));
}

TEST_CASE("spirv: a frame with any byte changed is refused or gives the same words") {
    const Bytes whole = packed(long_instruction(200));
    const Spirv words = decompress(whole);
    size_t accepted = 0;
    for (size_t at = 0; at < whole.size(); at++)
        for (const uint8_t change : Bytes{0x01, 0x10, 0x80, 0xff}) {
            Bytes changed = whole;
            changed[at] = static_cast<uint8_t>(changed[at] ^ change);
            if (is_refused(changed)) continue;
            accepted++;
            CHECK_EQ(decompress(changed), words);
        }
    // Checksums cover every part of the format and the words; only the last bits of the range coder may mean nothing.
    CHECK_LE(accepted, 4);
}

TEST_CASE("spirv: frames of something else than modules are refused") {
    const auto frame_of = [](const Spirv& words) { return compressed(bytes_of(words)); };
    CHECK(is_refused({}));
    CHECK(is_refused(Bytes(1000)));
    CHECK(is_refused(compressed({})));
    CHECK(is_refused(compressed(Bytes(4001))));
    Bytes twice = packed(some_module(200));
    twice.insert(twice.end(), twice.begin(), twice.end());
    CHECK(is_refused(twice));
    // A size that nobody has memory for must not be believed: zeros compress to nearly nothing.
    CHECK(is_refused(compressed(Bytes((64 << 20) + 4))));
    // Words, but not a header and whole instructions.
    CHECK_FALSE(is_refused(frame_of(Spirv(5))));
    CHECK(is_refused(frame_of(Spirv(4))));
    CHECK(is_refused(frame_of(Spirv(6))));
    CHECK(is_refused(frame_of({1, 2, 3, 4, 5, 3u << 16, 1})));
}

TEST_CASE("spirv: every module is embedded, whole and without names") {
    std::set<std::string> names;
    for (const Module& module : built_modules()) {
        const std::string name = name_of(module);
        CAPTURE(name);
        names.insert(name);
        const Spirv words = spirv_of(module);
        REQUIRE_GE(words.size(), 5);
        CHECK_EQ(words[0], 0x07230203);
        size_t at = 5;
        size_t named = 0;
        while (at < words.size() && words[at] >> 16 != 0) {
            const uint32_t opcode = words[at] & 0xffff;
            named += opcode >= 2 && opcode <= 8 ? 1 : 0;  // OpSourceContinued to OpLine
            at += words[at] >> 16;
        }
        CHECK_EQ(at, words.size());
        CHECK_EQ(named, 0);
    }
    CHECK_EQ(names.size(), built_modules().size());
    CHECK(names.contains("forward_tiles_f32_rolled"));
    CHECK_FALSE(names.contains("combine_f32_rolled"));
}

TEST_CASE("spirv: modules that preserve what is not finite say so once, and are the same otherwise") {
    for (const Module& module : built_modules()) {
        CAPTURE(name_of(module));
        const Spirv words = spirv_of(module), changed = preserving_nonfinite(words);
        const auto instructions = [](const Spirv& of) {
            std::vector<Spirv> all;
            for (size_t at = 5; at < of.size(); at += of[at] >> 16)
                all.emplace_back(of.begin() + static_cast<ptrdiff_t>(at),
                                 of.begin() + static_cast<ptrdiff_t>(at + (of[at] >> 16)));
            return all;
        };
        const std::vector<Spirv> before = instructions(words);
        size_t added = 0, next = 0;
        uint32_t last_section = 0;
        for (const Spirv& i : instructions(changed)) {
            if (next < before.size() && i == before[next]) {
                next++;
                last_section = i[0] & 0xffff;
            } else if (i[0] == 0x20011) {  // OpCapability SignedZeroInfNanPreserve
                CHECK_EQ(i[1], 4466);
                CHECK_EQ(last_section, 17);
                added++;
            } else {  // OpExecutionMode SignedZeroInfNanPreserve 32
                CHECK_EQ(i[0], 0x40010);
                CHECK_EQ(i[2], 4461);
                CHECK_EQ(i[3], 32);
                CHECK((last_section == 15 || last_section == 16 || last_section == 331));
                added++;
            }
        }
        CHECK_EQ(next, before.size());
        CHECK_EQ(added, 2);
    }
}

TEST_CASE("spirv: calls of modules for GPUs are nested no deeper than kernels.def says") {
    size_t deepest = 0;
    for (const Module& module : built_modules()) {
        if (module.has(macros::ROLLED)) continue;
        CAPTURE(name_of(module));
        const size_t depth = call_depth(spirv_of(module));
        CHECK_LE(depth, 7);
        deepest = std::max(deepest, depth);
    }
    CHECK_GT(deepest, 0);
}

TEST_CASE("spirv: a literal is not taken for the id of a constant that no code reads") {
    const Spirv module{0x07230203,    0x10500, 0,  20,  0,     // the header
                       4 << 16 | 71,  1,       1,  0,          // OpDecorate %1 SpecId 0
                       4 << 16 | 71,  2,       1,  1,          // OpDecorate %2 SpecId 1
                       4 << 16 | 71,  4,       1,  33,         // OpDecorate %4 SpecId 33
                       4 << 16 | 21,  3,       32, 0,          // %3 = OpTypeInt 32 0
                       4 << 16 | 50,  3,       1,  4,          // %1 = OpSpecConstant %3 4
                       4 << 16 | 50,  3,       2,  1,          // %2 = OpSpecConstant %3 1
                       4 << 16 | 50,  3,       4,  1,          // %4 = OpSpecConstant %3 1
                       6 << 16 | 52,  3,       5,  128, 4, 4,  // %5 = OpSpecConstantOp %3 IAdd %4 %4
                       5 << 16 | 54,  6,       7,  1,   8,     // %7 = OpFunction %6 Inline %8
                       5 << 16 | 81,  3,       9,  10,  1,     // %9 = OpCompositeExtract %3 %10 1
                       6 << 16 | 12,  3,       11, 12,  1, 9,  // %11 = OpExtInst %3 %12 1 %9
                       5 << 16 | 128, 3,       13, 2,   5};    // %13 = OpIAdd %3 %2 %5
    CHECK_EQ(constants_read(module), uint64_t{1} << 1 | uint64_t{1} << 33);
}

// An Adreno 840 computes these two wrong: shaders/lib/constants.glsl and quirk_index_takes_time. Of the words of the
// SPIR-V specification, 28 is OpTypeArray, 32 OpTypePointer (4: Workgroup), 52 OpSpecConstantOp (169: OpSelect), and
// 71 OpDecorate (11: BuiltIn, 41: SubgroupLocalInvocationId).
TEST_CASE("spirv: no shared array's length is a choice, and only matrices know the driver's lanes") {
    size_t shared = 0;
    for (const Module& module : built_modules()) {
        CAPTURE(name_of(module));
        const Spirv words = spirv_of(module);
        std::set<uint32_t> chosen;  // constants that depend on a choice, and arrays of such lengths
        for (size_t at = 5; at < words.size(); at += words[at] >> 16) {
            const std::span<const uint32_t> i(&words[at], words[at] >> 16);
            const auto depends = [&](uint32_t id) { return chosen.contains(id); };
            switch (i[0] & 0xffff) {
                case 28:
                    if (depends(i[2]) || depends(i[3])) chosen.insert(i[1]);
                    break;
                case 32:
                    shared += i[2] == 4 ? 1 : 0;
                    if (i[2] == 4) CHECK_FALSE(depends(i[3]));
                    break;
                case 52:
                    if (i[3] == 169 || std::any_of(i.begin() + 4, i.end(), depends)) chosen.insert(i[2]);
                    break;
                case 71:
                    if (i[2] == 11 && i[3] == 41) CHECK(info_of(module.kernel).on_matrices);
                    break;
            }
        }
    }
    CHECK_GT(shared, built_modules().size());
}
