// dS^T lies in scratch, in 16 bits, on its way from backward_matrix_key_value.comp to backward_matrix_spilled.comp and
// backward_mask_spilled.comp. The scratch holds spill_heads kv heads and spill_steps steps of each, a step being
// STEP_ROWS query rows of one head. Strips of so many heads and steps take turns in it, so that no more of dS^T than
// that exists at any time.
//
// A matrix of M keys and K query rows is contiguous, each key's rows together. Matrices follow each other by query
// rows, then keys, then steps, then heads. Where some row of a tile of backward_matrix_spilled.comp sees some key of a
// tile of backward_matrix_key_value.comp, all matrices of the two are written: zeros, if no row of a step sees a key.
// Others are never read.
layout(buffer_reference, std430, buffer_reference_align = 16) restrict readonly buffer SpillIn { uvec4 x[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) restrict writeonly buffer SpillOut { uvec4 x[]; };

const uint SPILLED_MATRIX = M * K / 8;                             // in vec4
const uint SPILLED_KEYS = STEP_ROWS / K * SPILLED_MATRIX;          // of a step: M keys
uint spill_key_blocks() { return (key_extent() + STEP_KEYS - 1) / STEP_KEYS * (STEP_KEYS / M); }
// Returns where a step of a kv head (counted over all batches) begins.
uint spilled_step(uint head, uint step) {
    return (head % push.spill_heads * push.spill_steps + step) * (spill_key_blocks() * SPILLED_KEYS);
}
