#version 460
// Merges attention over disjoint parts of the keys by their lse (the merge step of FlashDecoding; Dao,
// arXiv:2307.08691, section 3.1, has the algebra).
//
//   for each row:  m = max over parts of lse;  w = e^(lse - m);  total = sum of w
//                  out = sum of w / total * part;  lse = m + ln(total)
//
// If there are sinks, a part more joins m and total, whose lse is the head's sink and whose out is 0.
//
// The forward's own parts have row_max for lse, and row_sum as a factor of w. A part with lse = -inf, or row_sum = 0,
// saw no key: its out does not count, whatever it is. One part alone comes out bit for bit. A single team sums in the
// order of the parts, so that a row does not depend on how many empty ones there are, nor where.
//
// Tile ownership: a row has TEAMS of LANES invocations. A team merges every TEAMS-th step of STEP_PARTS parts; a lane
// has every LANES-th vec4 of them. Of the parts' statistics, each invocation of the row has every LANES * TEAMS-th.
// Shared memory: a word an invocation, for what a row's tell each other; a vec4 an invocation, a team's sum.
#extension GL_GOOGLE_include_directive : require
#include "lib/extensions.glsl"
#include "shared/kernels.h"
#include "lib/as_constants.glsl"
#include "interface/combine.def"
#include "lib/as_push.glsl"
layout(local_size_x_id = ID_THREADS) in;
layout(push_constant, std430) uniform PushBlock {
#include "interface/combine.def"
} push;
#include "lib/operands.glsl"
#include "lib/logarithms.glsl"

const float LOWEST = -3e38, LARGEST_SINK = 6.9e37;  // the latter is HIGHEST_BIAS of lib/scores.glsl
const uint NOTHING = 0x80000000;  // for a weight's bits: of a part that saw no key. A weight itself may be NaN

// The workgroup's head and first row are the same for all its invocations.
uint head = push.first_x + gl_WorkGroupID.x;
uint first_row = (push.first_y + gl_WorkGroupID.y) * (THREADS / (LANES * TEAMS));

// A row's place in (part, batch, num_heads, seqlen_q, elements), float32. Lanes ask for different parts: these lie
// within 31-bit offsets of the first unless the planner says FAR_ROWS.
RowStart statistics_of(uvec2 base, uint first_part, uint part, uint row, uint elements) {
    uvec2 index = address_add(mul_wide(first_part, push.num_heads_all), uvec2(head, 0));
    index = address_add(mul_wide(push.seqlen_q, index), uvec2(first_row, 0));
    const uint parts = part - first_part;
    if (FAR_ROWS) {
        index = address_add(index, mul_wide(push.seqlen_q, mul_wide(parts, push.num_heads_all)));
        return RowStart(address_add(base, mul_wide(4 * elements, index)), (row - first_row) * elements);
    }
    return RowStart(address_add(base, mul_wide(4 * elements, index)),
                    (parts * push.num_heads_all * push.seqlen_q + row - first_row) * elements);
}

// x: the part's lse or maximum; y: its sum, 0 if it saw nothing.
vec2 part_statistics(uint first_part, uint part, uint row) {
    if (PARTS_HAVE_MAX_SUM) {
        const RowStart at = statistics_of(push.parts_lse, first_part, part, row, PART_FLOATS(PARTS_HAVE_SHIFT));
        return vec2(FloatsIn(at.base).x[at.at], FloatsIn(at.base).x[at.at + 1]);
    }
    const RowStart at = statistics_of(push.parts_lse, first_part, part, row, 1);
    const uint bits = UintsIn(at.base).x[at.at];
    return vec2(uintBitsToFloat(bits), bits == MINUS_INFINITY ? 0 : 1);
}

float weight(vec2 statistics, float m) {
    const float difference = (statistics.x - m) * (PARTS_ARE_NATURAL ? LOG2_E : 1);
    return statistics.y * EXP2(difference);
}

// A part that saw all of a row's keys comes out bit for bit. Dividing equal numbers need not give 1: without this,
// rows on an H200 (driver 580.159) differed by whether their keys were cut.
float share(float weight, float total) { return weight == total ? 1 : weight / total; }

float lse_of(float m, float total) {
    if (!IS_FINITE(total)) return uintBitsToFloat(NAN_BITS);
    if (PARTS_HAVE_MAX_SUM) return PARTS_ARE_NATURAL ? m + LN_2 * log2(total) : LN_2 * (m + log2(total));
    return total > 1 ? m + LN_2 * log2(total) : m;  // log2(1) need not be 0 in a driver
}

RowStart tensor_row(uvec2 base, uvec2 batch_stride, uvec2 head_stride, uvec2 seq_stride, uint row, uint element_bytes) {
    base = address_add(base, mul_wide(head / push.num_heads, batch_stride));
    base = address_add(base, mul_wide(head % push.num_heads, head_stride));
    base = address_add(base, mul_wide(first_row, seq_stride));
    const uint steps = row - first_row;
    if (FAR_ROWS) return RowStart(address_add(base, mul_wide(steps, seq_stride)), 0);
    return RowStart(base, steps * (seq_stride.x / element_bytes));
}

vec4 load_part(uint part, uint row, uint d) {
    const uvec2 base = address_add(push.parts, mul_wide(part, push.part_stride));
    const uint element_bytes = PARTS_ARE_FLOAT32 ? 4 : OUT_BYTES;
    const RowStart at = tensor_row(base, push.part_batch, push.part_head, push.part_seq, row, element_bytes);
    return PARTS_ARE_FLOAT32 ? load4_float32(at, d, HEAD_DIM_V, false) : load_out4(at, d, HEAD_DIM_V, false);
}

const uint ROW_LANES = LANES * TEAMS;  // invocations of a row
shared uint told[THREADS];  // bits of floats
shared vec4 sums[THREADS];  // used by several teams only: see lib/constants.glsl on lengths
uint lane = gl_LocalInvocationIndex % LANES;
uint team = gl_LocalInvocationIndex / LANES % TEAMS;
uint own = gl_LocalInvocationIndex % ROW_LANES;
uint first_of_row = gl_LocalInvocationIndex - own;

// Loads the statistics of part first + own, which are those of no key where there is no such part. The first ones are
// kept.
vec2 own_first;
vec2 load_statistics(uint first, uint row) {
    const uint part = first + own;
    const vec2 statistics = part_statistics(first, min(part, push.num_parts - 1), row);
    return part < push.num_parts ? statistics : vec2(0);
}

vec2 own_statistics(uint first, uint row) { return first == 0 ? own_first : load_statistics(first, row); }

// Parts from here on saw no key in any row of the workgroup. The last splits of few keys have none, and going through
// them takes as long as through the others. On an H200 a forward over 2,048 keys of 131,072, whose plan has many
// splits, took 1.4 us longer than one over all of 2,048 (`vkattn bench --kv-lengths 2048`).
shared uint end_of_seen;
uint parts_seen = push.num_parts;

// Tells x to the row: told[first_of_row + i] is of part first + i. Returns how many there are.
uint tell(uint x, uint first) {
    barrier();
    told[gl_LocalInvocationIndex] = x;
    barrier();
    return min(ROW_LANES, parts_seen - first);
}

// Sets parts_seen. If there are more parts than a row has invocations, it leaves all of them.
void find_parts_seen() {
    if (push.num_parts > ROW_LANES) return;
    if (gl_LocalInvocationIndex == 0) end_of_seen = 0;
    barrier();
    if (!IS_ZERO(own_first.y)) atomicMax(end_of_seen, own + 1);
    barrier();
    parts_seen = end_of_seen;
}

// Parts of a step of the team, from `first` on: their loads are under way at once, so none hangs on a test.
vec4 loaded[STEP_PARTS];
void load_step(uint first, uint row, uint d) {
    [[unroll]] for (uint i = 0; i < STEP_PARTS; i++) loaded[i] = load_part(min(first + i, push.num_parts - 1), row, d);
}

// Elements d .. d+3 of the merged row, of which the team's first step is loaded.
vec4 merged(uint row, uint d, float m, float total) {
    vec4 sum = vec4(0);
    for (uint first = 0; first < parts_seen; first += ROW_LANES) {
        const vec2 statistics = own_statistics(first, row);
        const float share_of_part = share(weight(statistics, m), total);
        const uint count = tell(IS_ZERO(statistics.y) ? NOTHING : floatBitsToUint(share_of_part), first);
        for (uint at = team * STEP_PARTS; at < count; at += TEAMS * STEP_PARTS) {
            if (first + at > team * STEP_PARTS) load_step(first + at, row, d);
            [[unroll]] for (uint i = 0; i < STEP_PARTS; i++) {
                const uint w = at + i < count ? told[first_of_row + at + i] : NOTHING;
                sum += w != NOTHING ? uintBitsToFloat(w) * loaded[i] : vec4(0);
            }
        }
    }
    return sum;
}

vec4 sum_over_teams(vec4 x) {
    if (TEAMS == 1) return x;
    barrier();
    sums[gl_LocalInvocationIndex] = x;
    barrier();
    vec4 sum = vec4(0);
    for (uint t = 0; t < TEAMS; t++) sum += sums[first_of_row + t * LANES + lane];
    return sum;
}

// Joins the sink of the head with the parts. True if it is the largest of them: the lse is near it then.
bool join_sink(float shift, out float sink, inout float m, inout float total) {
    sink = FloatsIn(push.sinks).x[head % push.num_heads];
    if (floatBitsToUint(sink) == MINUS_INFINITY) return false;
    precise const float relative = clamp(sink - shift, -LARGEST_SINK, LARGEST_SINK);
    precise const float last = relative * (PARTS_ARE_NATURAL ? 1 : LOG2_E);  // lib/term_sinks.glsl says why precise
    const float most = max(m, last), of_parts = IS_ZERO(total) ? 0 : total * weight(vec2(m, 1), most);
    total = IS_FINITE(sink) ? of_parts + weight(vec2(last, 1), most) : uintBitsToFloat(NAN_BITS);
    const bool is_largest = last > m;
    m = most;
    return is_largest;
}

void main() {
    const uint own_row = first_row + gl_LocalInvocationIndex / ROW_LANES, row = min(own_row, push.seqlen_q - 1);
    // These loads depend on no other load: that takes 80.4 us, three loads in a chain 82.6 (H200, decoding, 64 parts).
    own_first = load_statistics(0, row);
    load_step(team * STEP_PARTS, row, 4 * lane);
    float m = LOWEST, total = 0;
    find_parts_seen();
    for (uint first = 0; first < parts_seen; first += ROW_LANES) {
        const vec2 statistics = own_statistics(first, row);
        const uint count = tell(floatBitsToUint(IS_ZERO(statistics.y) ? LOWEST : statistics.x), first);
        for (uint i = 0; i < count; i++) m = max(m, uintBitsToFloat(told[first_of_row + i]));
    }
    for (uint first = 0; first < parts_seen; first += ROW_LANES) {
        const vec2 statistics = own_statistics(first, row);
        const uint count = tell(floatBitsToUint(IS_ZERO(statistics.y) ? 0 : weight(statistics, m)), first);
        for (uint i = 0; i < count; i++) total += uintBitsToFloat(told[first_of_row + i]);  // in their order
    }
    float shift = 0;
    if (PARTS_HAVE_SHIFT) {  // the same in all parts
        const RowStart of_first = statistics_of(push.parts_lse, 0, 0, row, PART_FLOATS(true));
        shift = FloatsIn(of_first.base).x[of_first.at + 2];
    }
    const bool sees_none = IS_ZERO(total);
    const bool has_sinks = push.sinks != uvec2(0);
    bool is_near_sink = false;
    float sink = 0;
    if (has_sinks) is_near_sink = join_sink(sees_none ? 0 : shift, sink, m, total);
    const bool stores = own_row < push.seqlen_q && team == 0;
    const RowStart at = tensor_row(push.out_rows, push.out_batch, push.out_head, push.out_seq, row, OUT_BYTES);
    for (uint first = 0; first < HEAD_DIM_V; first += 4 * LANES) {
        const uint d = first + 4 * lane;
        if (first > 0) load_step(team * STEP_PARTS, row, d);
        vec4 x = sum_over_teams(merged(row, d, m, total));
        if (IS_NAN(total)) x = vec4(uintBitsToFloat(NAN_BITS));
        if (stores && d < HEAD_DIM_V) store_out4(at, d, HEAD_DIM_V, x);
    }
    if (!stores || lane != 0 || push.lse == uvec2(0)) return;
    const RowStart to = statistics_of(push.lse, 0, 0, row, 1);
    uint lse = IS_ZERO(total) ? MINUS_INFINITY : floatBitsToUint(lse_of(m, total) + shift);
    if (is_near_sink && IS_FINITE(total))
        lse = floatBitsToUint(sees_none ? sink : clamp(sink, -LARGEST_SINK, LARGEST_SINK) + LN_2 * log2(total));
    UintsOut(to.base).x[to.at] = lse;
}
