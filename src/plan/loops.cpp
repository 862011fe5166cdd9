// How far a workgroup of the portable kernels may walk on a driver that ends loops early.
//
// In Debian 12's lavapipe (Mesa 22.3.6, 256 bits) an invocation's loops end after 65,535 iterations together. There the
// smallest lengths that were wrong were bisected, in float32 and without splits. Behind them stands what
// iterations_of() takes a row for:
//
//   kernel and its rows                                right      wrong   iterations of a row    taken for
//   rows, head dims 4, one query                      24,671     25,437             2.6              10
//   the same with slopes                              15,101     15,484             4.3              10
//   tiles, head dims 8, 8 queries                     11,000     11,437             5.8              12
//   tiles, head dims 256, 8 queries                    1,843      1,887            35               136
//   dquery, head dims 128, 8 queries, keys               953        983            67               144
//   dkey and dvalue, head dims 128, 8 keys, queries      800        831            80               144
#include "loops.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "quirks.hpp"

namespace vkattn::core {

uint64_t longest_walk(const DeviceCaps& caps, uint64_t iterations_of_step) {
    constexpr uint64_t most_iterations = 65535 / 2;  // the other half is for what is not a step
    if (!quirk_loops_end_early(caps)) return UINT64_MAX;
    return most_iterations / std::max<uint64_t>(1, iterations_of_step);
}

Failure loops_too_long(const char* field, uint64_t steps, uint64_t most) {
    return unsupported(field, fmt::format("{}: a workgroup would walk {} steps, and may walk {}",
                                          loops_end_early, steps, most));
}

uint64_t iterations_of(const Problem& p, uint64_t rows, bool backward) {
    const uint64_t of_blocks =
        p.block_map != 0 ? 24 + uint64_t{2} * p.group_size : 0;  // packed heads have maps each
    const uint64_t of_row = 8 + of_blocks + (uint64_t{p.head_dim_qk} + p.head_dim_v) / 4;
    return rows * of_row * (backward ? 2 : 1);
}

Result<bool> check_baseline_loops(const DeviceCaps& caps, const Problem& p, bool backward) {
    const uint64_t most = longest_walk(caps, iterations_of(p, 1, backward));
    if (p.seqlen_kv > most) return loops_too_long("problem.seqlen_kv", p.seqlen_kv, most);
    const uint64_t queries = uint64_t{p.group_size} * p.seqlen_q;  // of a key
    if (backward && queries > most) return loops_too_long("problem.seqlen_q", queries, most);
    return true;
}

}  // namespace vkattn::core
