    // The mask, as a term of lib/scores.glsl. A driver may load the mask of a hidden key ahead of the test: it must be
    // there.
    if (MASK_KIND != MASK_NONE && asks_mask && !hidden) {
        const uint at = min(uint(key), terms.w.num_keys - 1) * mask_key_step();
        const vec2 element = mask_element(mask_row(terms.mask, row), at);
        hidden = element.y != 0;
        spoiled = spoiled || !IS_FINITE(element.x);
        added += clamp(SLOPES == SLOPES_MASK ? slope * element.x : element.x, -HIGHEST_BIAS, HIGHEST_BIAS);
    }
