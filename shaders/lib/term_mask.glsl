    // The mask, as a term of lib/scores.glsl. A driver may load the mask of a hidden key ahead of the test: it must be
    // there.
    if (MASK_KIND != MASK_NONE && mask_is_mixed && !hidden) {
        const vec2 element = mask_element(mask_row(mask, row), min(uint(key), last_key) * mask_key_step());
        hidden = element.y != 0;
        added = LOG2_E * clamp(element.x, -HIGHEST_BIAS, HIGHEST_BIAS);
    }
