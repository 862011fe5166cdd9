// backward_matrix_key_value.comp writes dS^T to scratch (lib/spill.glsl) as the operands that it multiplies.
const bool SPILLS = SPILLED_ROWS != 0;
const uint STEP_ROWS = WALKED, STEP_KEYS = HELD_ROWS;
#include "lib/spill.glsl"

uint spill_at;  // where the walked tile's dS^T of the subgroup's keys goes

// A tile of backward_matrix_spilled.comp reads all steps of its rows if some row sees some of the keys. So the walked
// rows are extended to whole such tiles.
uvec2 with_whole_tiles(uvec2 rows, uint num_queries) {
    if (!SPILLS || rows.x >= rows.y) return rows;
    const uint end = (rows.y + SPILLED_ROWS - 1) / SPILLED_ROWS * SPILLED_ROWS;
    return uvec2(rows.x / SPILLED_ROWS * SPILLED_ROWS, min(end, num_queries));
}

void spill_block(uint block) {
    if (!SPILLS) return;
    FOR_EACH(r, ROW_BLOCKS)
        FOR_EACH(k, KEY_STEPS) {
            const uint at = spill_at + r * SPILLED_KEYS + (block * KEY_STEPS + k) * SPILLED_MATRIX;
#ifdef F16
            if (SPILL_ORDER == 1) {
                uvec4 words;
                FOR_EACH(i, 4)
                    words[i] = packFloat2x16(f16vec2(p_own[r * KEY_STEPS + k][2 * i], p_own[r * KEY_STEPS + k][2 * i + 1]));
                SpillOut(push.spill).x[at + lane] = words;
                continue;
            }
#endif
            coopMatStore(p_own[r * KEY_STEPS + k], SpillOut(push.spill).x, at, K / 8, OWN_ORDER);
        }
}
// The same for a block that is left out.
void spill_nothing(uint block) {
    if (!SPILLS) return;
    FOR_EACH(x, ROW_BLOCKS * KEY_STEPS) p_own[x] = OWN_OPERAND(0);
    spill_block(block);
}
