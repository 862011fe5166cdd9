// A backward has the same bits however often it runs: no sum of it depends on which workgroup comes first.
#include <cstring>

#include "fixture.hpp"
#include "skip.hpp"
#include "vkattn/runtime.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// Numbers of float16 in -1 .. -0.5 and 0.5 .. 1.
std::vector<uint16_t> random_halves(size_t count, uint32_t state) {
    std::vector<uint16_t> halves(count);
    for (uint16_t& half : halves) {
        state = state * 1664525 + 1013904223;
        half = static_cast<uint16_t>(0x3800 | (state >> 22) | (state >> 6 & 0x8000));
    }
    return halves;
}

// Runs a backward of a batch so many times. Returns how often its gradients had other bits than at first.
int other_bits(Runtime& runtime, const VkattnProblem& p, int times) {
    const size_t elements = size_t{p.num_heads_q} * p.seqlen_q * p.head_dim_qk, bytes = elements * 2;
    std::vector<Buffer> tensors;  // query, key, value, dout, out, dquery, dkey, dvalue
    tensors.reserve(8);
    for (int i = 0; i < 8; i++) tensors.push_back(runtime.allocate(bytes));
    for (uint32_t i = 0; i < 4; i++) {
        const std::vector<uint16_t> halves = random_halves(elements, i + 1);
        runtime.upload(tensors[i], std::as_bytes(std::span(halves)));
    }
    const Buffer lse = runtime.allocate(uint64_t{p.num_heads_q} * p.seqlen_q * 4);
    VkattnForwardArgs forward = forward_args();
    forward.query = tensors[0].address();
    forward.key = tensors[1].address();
    forward.value = tensors[2].address();
    forward.out = tensors[4].address();
    forward.lse = lse.address();
    runtime.run(runtime.plan(p), forward);
    VkattnBackwardArgs args = backward_args();
    args.query = forward.query;
    args.key = forward.key;
    args.value = forward.value;
    args.out = forward.out;
    args.lse = forward.lse;
    args.dout = tensors[3].address();
    args.dquery = tensors[5].address();
    args.dkey = tensors[6].address();
    args.dvalue = tensors[7].address();
    VkattnOptions o = options();
    o.kernel = "matrix";
    const Plan plan = runtime.backward_plan(p, backward(), o);
    std::vector<std::byte> first(3 * bytes), again(3 * bytes);
    const auto gradients = [&](std::span<std::byte> all) {
        runtime.run(plan, args);
        for (size_t i = 0; i < 3; i++) runtime.download(tensors[5 + i], all.subspan(i * bytes, bytes));
    };
    gradients(first);
    int others = 0;
    for (int i = 1; i < times; i++) {
        gradients(again);
        others += std::memcmp(first.data(), again.data(), first.size()) != 0;
    }
    return others;
}

void check_reruns(OnDevice& on, uint32_t head_dim) {
    if (!on.device.has_matrix_unit(VKATTN_DTYPE_FLOAT16))
        return skip("reruns of a large backward: " + on.device.info().name + " has no matrix unit");
    const bool is_cpu = on.device.info().type == "cpu";
    if (is_cpu) skip("reruns of a large backward: 10 of a small one, because this device is a CPU");
    for (const bool causal : {false, true}) {
        CAPTURE(causal);
        VkattnProblem p = problem();
        p.batch = 1;
        p.num_heads_q = p.num_heads_kv = is_cpu ? 2 : 16;
        p.seqlen_q = p.seqlen_kv = is_cpu ? 200 : 2048;
        p.head_dim_qk = p.head_dim_v = is_cpu ? head_dim / 2 : head_dim;
        p.dtype = VKATTN_DTYPE_FLOAT16;
        p.causal = causal;
        CHECK_EQ(other_bits(on.runtime, p, is_cpu ? 10 : 1000), 0);
    }
}

}  // namespace

TEST_CASE_FIXTURE(OnDevice, "a large backward has the same bits 1,000 times: 64 head dims") {
    check_reruns(*this, 64);
}

TEST_CASE_FIXTURE(OnDevice, "a large backward has the same bits 1,000 times: 128 head dims") {
    check_reruns(*this, 128);
}

TEST_CASE_FIXTURE(OnDevice, "a large backward has the same bits 1,000 times: 256 head dims") {
    check_reruns(*this, 256);
}
