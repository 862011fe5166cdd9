// Problems for the planner's tests: head dims x shapes x layouts x features, and the devices they are planned for.
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

// Extents of the mask, from the whole (batch, num_heads_q, seqlen_q, seqlen_kv) to a single element. few_keys: a last
// extent of half the keys, which hides the others. few_heads: each mask head is read by some of the query heads, if
// their number allows it. sliding: a row of the mask begins one element behind the row before.
enum class MaskShape {
    whole,
    all_heads,
    all_batches,
    shared,
    keys,
    keys_of_batch,
    queries,
    one,
    few_keys,
    few_heads,
    sliding,
    count
};

// What a problem and its options may have beside their shape.
struct Features {
    const char* name = "";
    VkattnDtype dtype = VKATTN_DTYPE_FLOAT32;
    VkattnMaskType mask = VKATTN_MASK_NONE;
    MaskShape mask_shape = MaskShape::whole;
    bool kv_lengths = false, query_offsets = false;
    uint32_t num_splits = 0;
    uint64_t max_dispatch_flops = 0;
    bool batch_invariant = false;
    void (*set_more)(VkattnProblem&) = nullptr;  // what has no member above
};

const std::vector<HeadDims>& all_head_dims();
const std::vector<Shape>& all_shapes();
const std::vector<Features>& all_features();
const char* name_of(Layout layout);

// Rows are padded where alignment_bytes asks for it.
VkattnProblem make_problem(HeadDims dims, const Shape& shape, Layout layout = Layout::contiguous,
                           uint32_t alignment_bytes = 4, VkattnDtype dtype = VKATTN_DTYPE_FLOAT32);
void set_mask(VkattnProblem& problem, VkattnMaskType mask, MaskShape shape);
// Gradients laid out as their tensors are, where these do not broadcast; dbias if there is a float mask.
core::Backward make_backward(const core::Problem& problem, bool dlse = false);
// All of the features but the dtype.
void set_features(VkattnProblem& problem, const Features& features);
core::Options options_of(const Features& features);

// The definition: a query row stands at p = i + offset and sees key j if, window and causal bound permitting,
//   (causal) j <= p, (window) p - left <= j <= p + right.
// `offset` counts for VKATTN_ALIGN_OFFSETS, num_keys is the batch's own length.
bool sees(const VkattnProblem& problem, int64_t i, int64_t j, int64_t num_keys, int64_t offset = 0);

// Whether its plan has so many dispatches that not every device should be tried.
bool is_heavy(const core::Problem& problem);

// core::resolve of a problem that is meant to be valid; throws the failure's text.
core::Problem resolved(const VkattnProblem& problem);
core::Backward resolved(const core::Problem& problem, const VkattnBackward& backward);

std::string to_text(const core::Problem& problem);

// The profiles, read once.
const std::vector<Profile>& profiles();
const core::DeviceCaps& profile(const std::string& name);

// What Vulkan 1.2 guarantees and not more: 16 KiB of shared memory, 128 invocations, 128 bytes of push
// constants.
core::DeviceCaps smallest_device();

// Profiles that can run vkattn, and the smallest device.
const std::vector<Profile>& usable_devices();

// Returns the profiles that have matrix units, with these enabled. Nothing is known of their layouts, as before a
// probe.
const std::vector<Profile>& matrix_devices();
const core::DeviceCaps& matrix_device(const std::string& name);
// Returns the device after a probe that found the same layout for all its shapes, that of NVIDIA's 16 x 16 x 16.
// `left_alike`: of square shapes the left operand has it too.
core::DeviceCaps probed(core::DeviceCaps caps, bool left_alike = true);
// The same where accumulators become right operands, as on RDNA4, or as on RDNA3, where halves of a subgroup exchange
// theirs.
core::DeviceCaps probed_turned(core::DeviceCaps caps, bool exchanges);

}  // namespace vkattn::test
