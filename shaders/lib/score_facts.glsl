#ifndef SCORE_FACTS
#define SCORE_FACTS
// This file has what specialization constants alone tell of the scores. Loops ask for these facts, not for single terms
// (lib/scores.glsl); the planner has them in src/plan/terms.hpp.
const bool HIDES_KEYS = MASK_KIND != MASK_NONE;      // a term hides single keys, whatever the bounds say
const bool TERMS_ADD = MASK_KIND == MASK_FLOAT || SLOPES == SLOPES_DISTANCE;  // a term adds a number to scores
// Scores are natural numbers, not in base 2. A mask may bring them near 49,152, where a sum in base 2 would be rounded
// 1.44 times as coarsely (mask_fill=far in tests/cases). Row maxima and the lse of the backward are of the same kind.
const bool NATURAL_SCORES = MASK_KIND == MASK_FLOAT;
// A term changes every score. The mask is not meant: the matrix kernel knows of tiles in which it changes nothing, and
// can fetch it ahead.
const bool FINISHES_ALL_TILES = HAS_SOFTCAP || SLOPES != SLOPES_NONE;
// Scores of a row are relative to a number of the row, row_shift(), which its lse includes.
const bool SHIFTS_ROWS = SLOPES == SLOPES_DISTANCE;
#endif
