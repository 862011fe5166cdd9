// A score of one's own, in the place of shaders/lib/softcap.glsl: c * s / (c + |s|), where s is the scaled x.
vec4 capped(vec4 x, out vec4 derivative) {
    precise const vec4 s = x * push.score_scale;
    const vec4 part = push.score_softcap / (push.score_softcap + abs(s));
    derivative = part * part;
    return s * part;
}
