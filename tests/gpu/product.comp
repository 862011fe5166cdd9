#version 460
// c = a * b + plus, float32, then optionally max(., 0), then 0 where `gate` is not positive: the dense layers of a
// transformer block, forward and backward. A transposed matrix is one with its strides swapped. One invocation an
// element of c, in order of k.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
layout(local_size_x = 64) in;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float x[]; };
layout(push_constant, std430) uniform Push {
    Floats a, b, c;
    uvec2 plus, gate;         // of c's shape; 0: none
    uint rows, columns, inner;
    uint a_row, a_inner;      // strides in elements
    uint b_inner, b_column;
    uint relu;
};

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i >= rows * columns) return;
    float sum = 0;
    for (uint k = 0; k < inner; k++)
        sum += a.x[i / columns * a_row + k * a_inner] * b.x[k * b_inner + i % columns * b_column];
    if (plus != uvec2(0)) sum += Floats(plus).x[i];
    if (relu != 0) sum = max(sum, 0);
    if (gate != uvec2(0)) sum = Floats(gate).x[i] > 0 ? sum : 0;
    c.x[i] = sum;
}
