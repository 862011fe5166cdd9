// Slices of head dims, and loops that are cut into dispatches: for the backward's passes that sum gradients over
// tiles. It assumes push constants as in interface/backward_push.def.

// Which of the SLICES slices of its gradients' head dims a workgroup sums: there is more than one where a device has
// too few registers for all of them. What a slice recomputes is the same for all of them.
uint slice() { return SLICES > 1 ? push.first_z + gl_WorkGroupID.z : 0; }

// With IS_RESUMED, a workgroup's loop is spread over several dispatches, between which its accumulators lie in memory.
bool starts_loop() { return !IS_RESUMED || push.first_step == 0; }
bool ends_loop() { return !IS_RESUMED || push.end_step >= push.num_steps; }
bool has_step(uint step) { return !IS_RESUMED || (step >= push.first_step && step < push.end_step); }

// Accumulators in memory: rows of `vecs` vec4, dense over all heads of all batches, `rows` to a head.
uvec2 accumulators_at(uint head, uint rows, uint first_row, uint vecs) {
    const uvec2 index = address_add(mul_wide(rows, uvec2(head, 0)), uvec2(first_row, 0));
    return address_add(backward().x.accumulators, mul_wide(16 * vecs, index));
}
