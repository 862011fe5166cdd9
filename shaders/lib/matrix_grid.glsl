// Which workgroup of the grid works on what: x counts heads (times SLICES), y tiles. The kernels on matrix units call
// place_in_grid once, at their start.
//
// Heads are taken in groups, each with all its tiles before the next, so that the L2 cache holds the group's keys and
// values: `rows` rows a head, shared by `unit` workgroups, at most L2_GROUP_KIB a group. If a bound makes the last
// tiles the shortest, these fill the gaps that long ones leave, for which a group needs at least MIN_GROUP_WORKGROUPS
// workgroups.
uvec2 place_in_grid(uint unit, uint rows) {
    const uvec2 at = gl_WorkGroupID.xy, grid = gl_NumWorkGroups.xy;
    const float kib = float(rows) * (BYTES_OF_A_KEY / 1024.0);
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
