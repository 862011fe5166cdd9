// Products of query and key that are infinite (docs/semantics.md). That NaN and infinity never vanish is tested by the
// cases with `nonfinite`.
#include <fmt/format.h>

#include "backward_run.hpp"
#include "case_suite.hpp"
#include "interposer.hpp"
#include "nonfinite.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// The last element of each query row of the last batch and kv head is 1, so that an infinite one of a key makes an
// infinite product with all of them.
Inputs with_infinite_keys(const Job& job, float x, uint64_t first_key, uint64_t end_key) {
    Inputs inputs = job.inputs;
    Tensor &q = inputs.query, &k = inputs.key;
    const uint64_t group = q.heads / k.heads;
    for (uint64_t h = q.heads - group; h < q.heads; h++)
        for (uint64_t i = 0; i < q.seqlen; i++)
            store(q.row(q.batch - 1, h, i) + (q.dim - 1) * element_bytes(q.dtype), 1, q.dtype);
    for (uint64_t j = first_key; j < end_key; j++) set_element(k, j, x);
    return inputs;
}

// Rows that see a product of +inf are NaN; one of -inf weighs nothing, and a row of nothing else is a row without keys.
void check_infinite_products(Device& device, VkattnContext* context, const std::string& text) {
    const Job job(context, text);
    CAPTURE(job.c.text);
    const Visibility visible(job.c, job.inputs);
    const uint64_t keys = job.c.problem.seqlen_kv, at = keys / 2, dim = job.c.problem.head_dim_v;
    const size_t key = row_of_last_head(job.inputs.key, at), head = visible.head_of(visible.rows() - 1);
    const auto run = [&](float x, uint64_t first, uint64_t end) {
        return run_forward(device, job.plan, job.c, with_infinite_keys(job, x, first, end));
    };
    const Outcome clean = run(1, at, at + 1), high = run(infinity, at, at + 1),
                  low = run(-infinity, at, at + 1), none = run(-infinity, 0, keys);
    size_t seen = 0;
    for (size_t row = 0; row < visible.rows(); row++) {
        CAPTURE(row);
        const bool sees = visible.sees(row, key), own = visible.head_of(row) == head;
        seen += sees ? 1 : 0;
        CHECK(std::isnan(high.lse[row]) == sees);
        CHECK(is_all_nan(row_of(high.out, row, dim)) == sees);
        CHECK(!std::isnan(low.lse[row]));
        CHECK(is_finite(row_of(low.out, row, dim)));
        if (sees) CHECK(low.lse[row] < clean.lse[row]);
        if (own) CHECK(none.lse[row] == -infinity);
        for (const float x : row_of(none.out, row, dim))
            if (own) CHECK(x == 0);
    }
    CHECK(seen > 0);
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "infinite products of query and key: NaN above, nothing below") {
    for (const char* text :
         {"h=2 sq=64 skv=64 causal kernel=tiles", "h=2 sq=64 skv=64 causal kernel=tiles batch_invariant",
          "h=2 sq=64 skv=64 kernel=tiles batch_invariant",
          "h=2 sq=41 skv=57 mask=bool mask_shape=41,57 kernel=tiles",
          "h=2 sq=41 skv=57 mask=float mask_shape=41,57 kernel=tiles batch_invariant",
          "sq=1 skv=799 hq=4 hkv=2 kernel=rows splits=3", "h=2 sq=8 skv=57 causal kernel=materialized"})
        check_infinite_products(device, context.get(), text);
}

TEST_CASE_FIXTURE(OnDevice, "infinite products of query and key on matrix units") {
    if (!device.has_matrix_unit(VKATTN_DTYPE_FLOAT16)) return skip("infinite products on matrix units: none");
    for (const char* text : {"h=2 sq=64 skv=97 d=24 causal kernel=matrix dtype=f16",
                             "h=2 sq=64 skv=97 d=24 causal kernel=matrix dtype=f16 batch_invariant",
                             "sq=41 skv=97 d=24 mask=bool mask_shape=41,97 kernel=matrix dtype=f16"})
        check_infinite_products(device, runtime.context(), text);
}

// A number of a head that is not finite makes out and lse NaN of the head's rows, and of no others: all of them, or
// those that see a key.
void check_of_head(Device& device, VkattnContext* context, const std::string& text,
                   std::vector<float> CaseArrays::*numbers, std::initializer_list<float> spoilt_by,
                   bool all) {
    Job job(context, text);
    CAPTURE(job.c.text);
    const Visibility visible(job.c, job.inputs);
    const uint64_t dim = job.c.problem.head_dim_v;
    const Outcome clean = run_forward(device, job.plan, job.c, job.inputs);
    for (const float x : spoilt_by)
        for (const size_t head : {0, 3}) {
            Case spoilt = job.c;
            (spoilt.*numbers)[head] = x;
            const Outcome got = run_forward(device, job.plan, spoilt, job.inputs);
            size_t reached = 0;
            for (size_t row = 0; row < visible.rows(); row++) {
                const bool own = row / job.c.problem.seqlen_q % 4 == head;
                const bool is_reached = own && (all || !visible.is_empty(row));
                reached += is_reached ? 1 : 0;
                CHECK(std::isnan(got.lse[row]) == is_reached);
                CHECK(is_all_nan(row_of(got.out, row, dim)) == is_reached);
                if (!is_reached)
                    CHECK(std::ranges::equal(row_of(got.out, row, dim), row_of(clean.out, row, dim)));
            }
            CHECK(reached > 0);
        }
}

TEST_CASE_FIXTURE(Recorded, "slopes that are not finite") {
    for (const char* text : {"b=2 hq=4 hkv=2 sq=33 skv=57 slopes=1,1,1,1 causal align=offset offset=-3",
                             "b=2 hq=4 hkv=2 sq=2 skv=799 slopes=1,1,1,1 splits=3 lengths=799,0",
                             "hq=4 hkv=2 s=33 slopes=1,1,1,1 slopes_of=mask mask=float mask_shape=33,33 "
                             "mask_fill=rows"})
        check_of_head(device, context.get(), text, &CaseArrays::slopes, {not_a_number, infinity, -infinity},
                      false);
}

TEST_CASE_FIXTURE(Recorded, "sinks that are not finite") {
    for (const char* text :
         {"b=2 hq=4 hkv=2 sq=33 skv=57 sinks=1,1,1,1 causal align=offset offset=-3",
          "b=2 hq=4 hkv=2 sq=2 skv=799 sinks=1,1,1,1 splits=3 lengths=799,0",
          "b=2 hq=4 hkv=2 sq=2 skv=799 sinks=1,1,1,1 kernel=tiles slopes=1,1,1,1 lengths=799,0"})
        check_of_head(device, context.get(), text, &CaseArrays::sinks, {not_a_number, infinity}, true);
}

// Keys with a mask of -2e9 weigh nothing beside those with -1e9, whose lse can tell nothing smaller than 100 apart.
TEST_CASE_FIXTURE(Recorded, "keys that a large mask leaves no weight get no gradient") {
    const Case c = parse_case("sq=8 skv=8 mask=float mask_shape=8,8", "here");
    const Plan plan = backward_plan_of(context.get(), c);
    BackwardInputs inputs(c);
    for (size_t i = 0; i < 64; i++) inputs.forward.mask[i] = i % 8 < 4 ? -1e9 : -2e9;
    write_mask_image(c, inputs.forward);
    const oracle::Result exact =
        oracle::forward(oracle_problem(c, inputs.forward), dense(inputs.forward.query),
                        dense(inputs.forward.key), dense(inputs.forward.value));
    inputs.out.scatter(std::vector<float>(exact.out.begin(), exact.out.end()));
    inputs.lse.assign(exact.lse.begin(), exact.lse.end());
    const Gradients got = BackwardMemory(device, plan, c, inputs).run(plan).result;
    for (size_t key = 0; key < 8; key++) {
        double most = 0;
        for (const float x : row_of(got.value, key, 8))
            most = std::max(most, std::abs(static_cast<double>(x)));
        CAPTURE(key);
        if (key < 4)
            CHECK(most > 0.01);
        else
            CHECK(most < 1e-30);
    }
}
