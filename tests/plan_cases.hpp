// Problems for the planner's tests: head dims x shapes x layouts, and the devices they are planned for.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "profile.hpp"

namespace vkattn::test {

struct HeadDims {
    uint32_t qk, v;
};

struct Shape {
    uint32_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 0, seqlen_kv = 0;
    bool causal = false;
    int64_t window_left = -1, window_right = -1;
    VkattnAlign align = VKATTN_ALIGN_BOTTOM_RIGHT;
    int64_t query_offset = 0;
};

// bshd: (batch, seq, head, dim); padded: gaps at every level; wide: strides of 4 GiB and more; broadcast: key
// and value shared by all batches and heads.
enum class Layout { contiguous, bshd, padded, wide, broadcast, count };

const std::vector<HeadDims>& all_head_dims();
const std::vector<Shape>& all_shapes();
const char* name_of(Layout layout);

// Rows are padded where alignment_bytes asks for it.
VkattnProblem make_problem(HeadDims dims, const Shape& shape, Layout layout = Layout::contiguous,
                           uint32_t alignment_bytes = 4);

// core::resolve of a problem that is meant to be valid; throws the failure's text.
core::Problem resolved(const VkattnProblem& problem);

std::string to_text(const core::Problem& problem);

// The profiles, read once.
const std::vector<Profile>& profiles();
const core::DeviceCaps& profile(const std::string& name);

// What Vulkan 1.2 guarantees and not more: 16 KiB of shared memory, 128 invocations, 128 bytes of push
// constants.
core::DeviceCaps smallest_device();

// Profiles that can run vkattn, and the smallest device.
const std::vector<Profile>& usable_devices();

}  // namespace vkattn::test
