// The cases of tests/cases/{forward,backward,pairwise}.txt against the oracle, and the parser that reads them.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "backward_run.hpp"
#include "case_suite.hpp"
#include "skip.hpp"

using namespace vkattn::test;

namespace {

SectionSuite& forward_suite() {
    static SectionSuite suite(
#include "forward_cases.inc"
        , "tests/cases/forward.txt", run_case);
    return suite;
}

SectionSuite& backward_suite() {
    static SectionSuite suite(
#include "backward_cases.inc"
        , "tests/cases/backward.txt", run_backward_case);
    return suite;
}

constexpr const char* errors_text =
#include "errors_cases.inc"
    ;

std::string error_of(const std::string& text) {
    try {
        parse_cases(text, "f");
    } catch (const CaseError& e) {
        return e.what();
    }
    return "none";
}

}  // namespace

#define FORWARD_SECTION(name) TEST_SECTION(forward_suite, "forward cases: ", name)

FORWARD_SECTION("head dims")
FORWARD_SECTION("sequence lengths")
FORWARD_SECTION("heads")
FORWARD_SECTION("layouts")
FORWARD_SECTION("scores")
FORWARD_SECTION("causal")
FORWARD_SECTION("windows")
FORWARD_SECTION("empty and hidden")
FORWARD_SECTION("strides that are never taken")
FORWARD_SECTION("tunings")
ADD_SECTION(forward_suite, "modules of GPUs");
TEST_CASE("forward cases: modules of GPUs") {
    for (const Features features : {Features::all, Features::none})
        forward_suite().run("modules of GPUs", features);
}
FORWARD_SECTION("storage types")
FORWARD_SECTION("types of operands")
FORWARD_SECTION("value in key")
FORWARD_SECTION("masks")
FORWARD_SECTION("mask heads and strides")
FORWARD_SECTION("kv lengths and query offsets")
FORWARD_SECTION("slopes")
FORWARD_SECTION("sinks")
FORWARD_SECTION("block maps")
FORWARD_SECTION("splits and cuts")
FORWARD_SECTION("materialized")
FORWARD_SECTION("far")
FORWARD_SECTION("rounding")
FORWARD_SECTION("not finite")

TEST_MATRIX_SECTION(forward_suite, "forward cases: ", "matrix", VKATTN_DTYPE_FLOAT16)
TEST_MATRIX_SECTION(forward_suite, "forward cases: ", "few rows on matrix units", VKATTN_DTYPE_FLOAT16)
TEST_MATRIX_SECTION(forward_suite, "forward cases: ", "block maps on matrix units", VKATTN_DTYPE_FLOAT16)
TEST_MATRIX_SECTION(forward_suite, "forward cases: ", "not finite on matrix units", VKATTN_DTYPE_FLOAT16)
TEST_MATRIX_SECTION(forward_suite, "forward cases: ", "matrix bfloat16", VKATTN_DTYPE_BFLOAT16)

#define BACKWARD_SECTION(name) TEST_SECTION(backward_suite, "backward cases: ", name)

BACKWARD_SECTION("shapes")
BACKWARD_SECTION("strides")
BACKWARD_SECTION("heads")
BACKWARD_SECTION("visibility")
BACKWARD_SECTION("scores")
BACKWARD_SECTION("masks")
BACKWARD_SECTION("mask heads and strides")
BACKWARD_SECTION("slopes")
BACKWARD_SECTION("sinks")
BACKWARD_SECTION("block maps")
BACKWARD_SECTION("storage types")
BACKWARD_SECTION("types of operands")
BACKWARD_SECTION("cuts")
BACKWARD_SECTION("empty")
BACKWARD_SECTION("slices")
BACKWARD_SECTION("materialized")
BACKWARD_SECTION("not finite")
BACKWARD_SECTION("16-bit dot products")
TEST_MATRIX_SECTION(backward_suite, "backward cases: ", "matrix", VKATTN_DTYPE_FLOAT16)
TEST_MATRIX_SECTION(backward_suite, "backward cases: ", "block maps on matrix units", VKATTN_DTYPE_FLOAT16)
TEST_MATRIX_SECTION(backward_suite, "backward cases: ", "spilled dS", VKATTN_DTYPE_FLOAT16)
TEST_MATRIX_SECTION(backward_suite, "backward cases: ", "not finite on matrix units", VKATTN_DTYPE_FLOAT16)
TEST_MATRIX_SECTION(backward_suite, "backward cases: ", "matrix bfloat16", VKATTN_DTYPE_BFLOAT16)
ADD_SECTION(backward_suite, "modules of GPUs");
TEST_CASE("backward cases: modules of GPUs") {
    for (const Features features : {Features::all, Features::none})
        backward_suite().run("modules of GPUs", features);
}

static void run_pairs(const char* pass, RunCase run) {
    SectionSuite pairs(
#include "pairwise_cases.inc"
        , "tests/cases/pairwise.txt", run);
    pairs.run(pass);
}
TEST_CASE("every two features together") {
    run_pairs("forward", run_case);
}
TEST_CASE("every two features of the backward together") {
    run_pairs("backward", run_backward_case);
}

TEST_CASE("every section of the case files is run") {
    forward_suite().check_all_added();
    backward_suite().check_all_added();
}

// The cases of VKATTN_CASE, one a line.
static std::vector<Case> asked_cases() {
    const char* const lines = std::getenv("VKATTN_CASE");
    REQUIRE(lines != nullptr);
    std::istringstream all(lines);
    std::vector<Case> cases;
    for (std::string line; std::getline(all, line);) cases.push_back(parse_case(line, "VKATTN_CASE"));
    return cases;
}

TEST_CASE("the backward case in VKATTN_CASE" * doctest::skip()) {
    run_cases(asked_cases(), run_backward_case);
}

TEST_CASE("case lines are read as they are meant") {
    const Case c = parse_case(
        "b=2 hq=6 hkv=3 sq=97 skv=113 dqk=59 dv=64 causal align=offset offset=-5 layout=bshd scale=-0.3 "
        "window=5,7 "
        "softcap=3 pad=3 align_bytes=16 kernel=tiles tuning=rows=4,cols=8 seed=9 values=huge no_lse "
        "max_scratch=64",
        "f:1");
    const VkattnProblem& p = c.problem;
    CHECK(p.batch == 2);
    CHECK(p.num_heads_q == 6);
    CHECK(p.num_heads_kv == 3);
    CHECK(p.seqlen_q == 97);
    CHECK(p.seqlen_kv == 113);
    CHECK(p.head_dim_qk == 59);
    CHECK(p.head_dim_v == 64);
    CHECK(p.causal == 1);
    CHECK(p.align == VKATTN_ALIGN_OFFSET);
    CHECK(p.query_offset == -5);
    CHECK(p.softmax_scale == doctest::Approx(-0.3));
    CHECK(p.window_left == 5);
    CHECK(p.window_right == 7);
    CHECK(p.softcap == 3);
    CHECK(p.alignment_bytes == 16);
    CHECK(p.query_strides.head == 64);  // 59 + 3, rounded up to 16 bytes
    CHECK(p.query_strides.seq == 388);  // 6 * 64 + 3, rounded up
    CHECK(p.key_strides.seq == 196);
    CHECK(p.value_strides.head == 68);
    CHECK(c.tuning == "rows=4,cols=8");
    CHECK(c.options().max_scratch_bytes == 64);
    CHECK(!c.lse);
    CHECK(c.values == Values::huge);
    CHECK(parse_case("s=5", "f:1").problem.query_strides.seq == VKATTN_CONTIGUOUS);
    CHECK(parse_case("ks=0,0,12", "f:1").problem.key_strides.seq == 12);
}

TEST_CASE("case lines with storage types, masks, lengths and offsets are read as they are meant") {
    const Case c = parse_case(
        "b=3 hq=4 hkv=2 sq=5 skv=9 d=7 dtype=bf16 layout=bshd pad=2 mask=float mask_shape=3,1,5,8 "
        "mask_fill=tail lengths=9,0,-4 offsets=-3,7,2147483647 batch_invariant splits=3 max_flops=5000000000",
        "f:1");
    const VkattnProblem& p = c.problem;
    CHECK(p.dtype == VKATTN_DTYPE_BFLOAT16);
    CHECK(p.query_strides.head == 9);
    CHECK(p.mask == VKATTN_MASK_FLOAT);
    CHECK(p.mask_rank == 4);
    CHECK(p.mask_extents[0] == 3);
    CHECK(p.mask_extents[3] == 8);
    CHECK(c.mask_fill == MaskFill::tail);
    CHECK(p.kv_lengths == 1);
    CHECK(c.kv_lengths == std::vector<int32_t>{9, 0, -4});
    CHECK(p.align == VKATTN_ALIGN_OFFSETS);
    CHECK(c.query_offsets == std::vector<int32_t>{-3, 7, 2147483647});
    CHECK(c.options().batch_invariant == 1);
    CHECK(c.options().precision == VKATTN_PRECISION_STORAGE);
    CHECK(parse_case("s=5 precision=bf16", "f:1").options().precision == VKATTN_PRECISION_BFLOAT16);
    CHECK(c.options().num_splits == 3);
    CHECK(c.options().max_dispatch_flops == 5000000000);
    const oracle::Problem o = oracle_problem(c);
    CHECK(o.kv_lengths == std::vector<int64_t>{9, 0, 0});
    CHECK(o.query_offset == std::vector<int64_t>{-3, 7, 2147483647});
    CHECK(parse_case("s=5 dtype=f16 align_bytes=16", "f:1").problem.query_strides.head == 40);
    CHECK(parse_case("s=5 dtype=f16 align_bytes=2 pad=1", "f:1").problem.query_strides.seq == 9);
    CHECK(parse_case("s=5 dtype=f16", "f:1").problem.query_strides.seq == VKATTN_CONTIGUOUS);
}

TEST_CASE("errors in case lines name file and line") {
    CHECK(error_of("# nothing\n[a]\ns=1 # fine\n\n[b]\nsq=1") == "none");
    CHECK(error_of("s=1") == "f:1: a case before the first [section]");
    CHECK(error_of("[a]\ns=1\ncasual") == "f:3: unknown word 'casual'");
    CHECK(error_of("\n\n[a") == "f:3: ']' is missing");
    std::istringstream errors(errors_text);
    std::string message;
    for (std::string line; std::getline(errors, line);) {
        CAPTURE(line);
        if (line.starts_with('['))
            message = line.substr(1, line.size() - 2);
        else if (!line.empty() && line.front() != '#')
            CHECK(error_of("[a]\n" + line) == "f:2: " + message);
    }
    CHECK(!message.empty());
}

TEST_CASE("16-bit elements are read back as they were written, bit by bit") {
    for (const VkattnDtype dtype : {VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16}) {
        int different = 0, not_rounded = 0;
        for (uint32_t bits = 0; bits < 65536; bits++) {
            const auto given = static_cast<uint16_t>(bits);
            uint16_t stored = 0;
            const float value = load(reinterpret_cast<const std::byte*>(&given), dtype);
            store(reinterpret_cast<std::byte*>(&stored), static_cast<double>(value), dtype);
            if (std::isnan(value)) continue;
            if (stored != given) different++;
            if (rounded(static_cast<double>(value), dtype) != static_cast<double>(value)) not_rounded++;
        }
        CAPTURE(std::string(name_of(dtype)));
        CHECK(different == 0);
        CHECK(not_rounded == 0);
        CHECK(rounded(lowest(dtype), dtype) == lowest(dtype));
    }
    const uint16_t nan = 0x7fdb;
    for (const VkattnDtype dtype : {VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16})
        CHECK(std::isnan(load(reinterpret_cast<const std::byte*>(&nan), dtype)));
    CHECK(rounded(1.0 / 3, VKATTN_DTYPE_FLOAT16) == 0.333251953125);
    CHECK(rounded(1.0 / 3, VKATTN_DTYPE_BFLOAT16) == 0.333984375);
    CHECK(rounded(1e5, VKATTN_DTYPE_FLOAT16) == std::numeric_limits<double>::infinity());
}

TEST_CASE("a spike is a key that has nearly all the weight of a row") {
    const Case c = parse_case("b=2 h=2 sq=41 skv=57 dtype=f16 values=spike", "f:1");
    for (const double lse : expect(c, make_inputs(c)).exact.lse) CHECK(lse > 100);
}

TEST_CASE("hidden keys stay poison, by the heads that share them") {
    // Causal from the top left: query row 0 sees key 0, row 1 keys 0 and 1, ...
    Case c = parse_case("hq=4 hkv=2 sq=3 skv=6 causal align=top-left mask=bool mask_shape=4,1,6", "f:1");
    Inputs inputs = make_inputs(c);
    const double hidden = -std::numeric_limits<double>::infinity();
    std::fill(inputs.mask.begin(), inputs.mask.end(), hidden);
    inputs.mask[0 * 6 + 1] = inputs.mask[0 * 6 + 4] = inputs.mask[1 * 6 + 0] = inputs.mask[3 * 6 + 2] = 0;
    CHECK(visible_keys(c, inputs) ==
          std::vector<bool>{true, true, false, false, false, false, false, false, true, false, false, false});
    CHECK(mask_at(c, inputs, 0, 0, 2, 4) == 0);
    CHECK(mask_at(c, inputs, 0, 2, 2, 4) == hidden);

    c = parse_case("b=2 sq=2 skv=5 lengths=2,-1 mask=float mask_shape=3 dtype=f16 mask_fill=lowest", "f:1");
    inputs = make_inputs(c, Poison::infinity);
    CHECK(mask_at(c, inputs, 0, 0, 1, 1) == -65504);
    CHECK(mask_at(c, inputs, 0, 0, 1, 3) == hidden);
    CHECK(visible_keys(c, inputs) ==
          std::vector<bool>{true, true, false, false, false, false, false, false, false, false});
    const std::vector<float> keys = inputs.key.gather(inputs.key.image);
    CHECK(std::isfinite(keys[15]));
    CHECK(keys[16] == std::numeric_limits<float>::infinity());
    CHECK(inputs.mask_image.size() == 6);
}

// To look into one case: VKATTN_CASE='s=7 causal' vkattn_gpu_tests --no-skip -tc='the forward case in VKATTN_CASE'
TEST_CASE("the forward case in VKATTN_CASE" * doctest::skip()) {
    run_cases(asked_cases());
}
