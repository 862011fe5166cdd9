#ifndef SCORE_FACTS
#define SCORE_FACTS
// This file has what specialization constants alone tell of the scores. Loops ask for these facts, not for single terms
// (lib/scores.glsl); the planner has them in src/plan/terms.hpp.
#ifndef ID_HAS_LINKS  // kernels that are not for matrix units
const bool WHOLE_BLOCKS = false, HAS_LINKS = false;
#endif
const bool SKIPS_TILES = MASK_KIND != MASK_NONE || HAS_BLOCK_MAP;  // a term hides tiles, whatever the bounds say
const bool HIDES_KEYS = SKIPS_TILES && !WHOLE_BLOCKS;              // and keys of tiles that are not hidden
const bool TERMS_ADD = MASK_KIND == MASK_FLOAT || SLOPES == SLOPES_DISTANCE;  // a term adds a number to scores
// Scores are natural numbers, not in base 2. A mask may bring them near 49,152, where a sum in base 2 would be rounded
// 1.44 times as coarsely (mask_fill=far in tests/cases). Row maxima and the lse of the backward are of the same kind.
const bool NATURAL_SCORES = MASK_KIND == MASK_FLOAT;
// Loops with the macro QUICK_TERMS do two things without finishing a tile. They let scores begin as slopes where all
// keys of the tile lie on one side of its rows (lib/quick_slopes.glsl), and those with QUICK_CAP cap scores in the loop
// (lib/softcap.glsl). Slopes with a mask or a block map are finished: a mask may have a tile computed twice, which must
// give the same bits, and a map may hide the tiles that quick slopes take their offsets from.
#ifdef QUICK_TERMS
const bool ONLY_SLOPES = SLOPES == SLOPES_DISTANCE && !SKIPS_TILES && !HAS_SOFTCAP;
const bool BEGINS_AS_SLOPES = ONLY_SLOPES && !PACKED_HEADS && ELEMENT_LAYOUT != 0;
const bool FINISHES_SLOPES = SLOPES != SLOPES_NONE && !BEGINS_AS_SLOPES;
#else
const bool FINISHES_SLOPES = SLOPES != SLOPES_NONE;
#endif
// A term changes every score. The mask is not meant: the matrix kernel knows of tiles in which it changes nothing, and
// can fetch it ahead.
#ifdef QUICK_CAP
const bool FINISHES_ALL_TILES = FINISHES_SLOPES;
#else
const bool FINISHES_ALL_TILES = HAS_SOFTCAP || FINISHES_SLOPES;
#endif
// Scores of a row are relative to a number of the row, row_shift(), which its lse includes.
const bool SHIFTS_ROWS = SLOPES == SLOPES_DISTANCE;
#endif
