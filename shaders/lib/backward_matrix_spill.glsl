// backward_matrix_key_value.comp writes dS^T to scratch (lib/spill.glsl) as the operands that it multiplies.
#ifdef TURNED
const bool SPILLS = false;
#else
const bool SPILLS = SPILLED_ROWS != 0;
#endif
const uint STEP_ROWS = WALKED, STEP_KEYS = HELD_ROWS;
#include "lib/spill.glsl"

uint spill_at, spill_before;  // where dS^T of the subgroup's keys goes, of the walked tile and of the one before

// A tile of backward_matrix_spilled.comp reads all steps of its rows if some row sees some of the keys. So the walked
// rows are extended to whole such tiles.
uvec2 with_whole_tiles(uvec2 rows, uint num_queries) {
    if (!SPILLS || rows.x >= rows.y) return rows;
    const uint end = (rows.y + SPILLED_ROWS - 1) / SPILLED_ROWS * SPILLED_ROWS;
    return uvec2(rows.x / SPILLED_ROWS * SPILLED_ROWS, min(end, num_queries));
}

#ifdef TURNED
#define SPILL_BLOCK(at, block) {}
#else
// A macro, because NVIDIA's compiler unrolls no loop around a call that it can leave in several ways.
#define SPILL_BLOCK(at, block) \
    if (SPILLS) { \
        FOR_EACH(r, ROW_BLOCKS) \
            FOR_EACH(k, KEY_STEPS) \
                coopMatStore(p_own[r * KEY_STEPS + k], SpillOut(push.spill).x, \
                             (at) + r * SPILLED_KEYS + ((block) * KEY_STEPS + k) * SPILLED_MATRIX, K / 8, \
                             OWN_ORDER); \
    }
#endif
