// The cases of tests/cases/forward.txt against the oracle, and the parser that reads them.
#include <algorithm>

#include "forward_run.hpp"

using namespace vkattn::test;

namespace {

constexpr const char* case_text =
#include "forward_cases.inc"
    ;

const std::vector<Section>& sections() {
    static const std::vector<Section> all = parse_cases(case_text, "tests/cases/forward.txt");
    return all;
}

std::vector<std::string>& names_run() {
    static std::vector<std::string> names;
    return names;
}

bool add_name(const char* name) {
    names_run().emplace_back(name);
    return true;
}

void run_section(const std::string& name) {
    const auto section =
        std::find_if(sections().begin(), sections().end(), [&](const Section& s) { return s.name == name; });
    REQUIRE(section != sections().end());
    run_cases(section->cases);
}

std::string error_of(const char* text) {
    try {
        parse_cases(text, "f");
    } catch (const CaseError& e) {
        return e.what();
    }
    return "none";
}

}  // namespace

// A test case for each section, so that they can be chosen by name.
#define SECTION_NAMED(id, name)                    \
    static const bool id##_added = add_name(name); \
    TEST_CASE("forward cases: " name) {            \
        CHECK(id##_added);                         \
        run_section(name);                         \
    }

SECTION_NAMED(head_dims, "head dims")
SECTION_NAMED(lengths, "sequence lengths")
SECTION_NAMED(heads, "heads")
SECTION_NAMED(layouts, "layouts")
SECTION_NAMED(scores, "scores")
SECTION_NAMED(causal, "causal")
SECTION_NAMED(windows, "windows")
SECTION_NAMED(empty, "empty and hidden")
SECTION_NAMED(strides, "strides that are never taken")
SECTION_NAMED(tunings, "tunings")
SECTION_NAMED(materialized, "materialized")

TEST_CASE("every section of the case file is run") {
    for (const Section& section : sections()) {
        CAPTURE(section.name);
        CHECK(std::count(names_run().begin(), names_run().end(), section.name) == 1);
        CHECK(!section.cases.empty());
    }
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

TEST_CASE("errors in case lines name file and line") {
    CHECK(error_of("# nothing\n[a]\ns=1 # fine\n\n[b]\nsq=1") == "none");
    CHECK(error_of("s=1") == "f:1: a case before the first [section]");
    CHECK(error_of("[a]\ns=1\ncasual") == "f:3: unknown word 'casual'");
    CHECK(error_of("[a]\nheads=3") == "f:2: unknown word 'heads'");
    CHECK(error_of("[a]\nsq") == "f:2: 'sq' needs a value");
    CHECK(error_of("[a]\nsq=12x") == "f:2: '12x' is no such number");
    CHECK(error_of("[a]\nsq=-1") == "f:2: '-1' is no such number");
    CHECK(error_of("[a]\nwindow=3") == "f:2: '3' is not 2 numbers");
    CHECK(error_of("[a]\nalign=left") == "f:2: 'left' is none of bottom-right, top-left, offset");
    CHECK(error_of("[a]\nqs=1,2") == "f:2: '1,2' is not 3 numbers");
    CHECK(error_of("\n\n[a") == "f:3: ']' is missing");
}
