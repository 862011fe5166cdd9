// Which workgroup of the grid works on what: x counts heads (times SLICES), y tiles. The kernels on matrix units call
// place_in_grid once, at their start.
//
// A group of heads whose `rows` rows to go through fit L2_GROUP_KIB goes first with all its tiles, so that the cache
// holds these rows; `unit` workgroups share them. Where a bound makes the last tiles the shortest, they fill the gaps
// that long ones leave: so a group has at least MIN_GROUP_WORKGROUPS workgroups.
uvec2 place_in_grid(uint unit, uint rows) {
    const uvec2 at = gl_WorkGroupID.xy, grid = gl_NumWorkGroups.xy;
    const float kib = float(rows) * ((HEAD_DIM_QK + HEAD_DIM_V) * KEY_VALUE_BYTES / 1024.0);
    if (L2_GROUP_KIB == 0 || float(L2_GROUP_KIB) * unit >= kib * float(grid.x)) return at;
    if (float(grid.x) * float(grid.y) > 4e9) return at;
    uint group_width = max(1u, uint(L2_GROUP_KIB / kib)) * unit;
    if (tiles_differ_in_length())
        group_width = max(group_width, MATRIX_STEPS(MIN_GROUP_WORKGROUPS / grid.y, unit) * unit);
    if (group_width >= grid.x) return at;
    const uint i = at.y * grid.x + at.x, first = i / (group_width * grid.y) * group_width;
    const uint rest = i % (group_width * grid.y), width = min(group_width, grid.x - first);
    return uvec2(first + rest % width, rest / width);
}
