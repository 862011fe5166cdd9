#version 460
// c = scale * a * b + plus, float32: dense layers, forward and backward. A transposed matrix has its strides swapped.
// An invocation computes an element of c, in order of k.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
layout(local_size_x = 64) in;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float x[]; };
layout(push_constant, std430) uniform Push {
    Floats a, b, c;
    uvec2 plus;               // of c's shape, or c itself; 0: none
    uint rows, columns, inner;
    uint a_row, a_inner;      // strides in elements
    uint b_inner, b_column;
    float scale;
};

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i >= rows * columns) return;
    float sum = 0;
    for (uint k = 0; k < inner; k++)
        sum += a.x[i / columns * a_row + k * a_inner] * b.x[k * b_inner + i % columns * b_column];
    c.x[i] = scale * sum + (plus != uvec2(0) ? Floats(plus).x[i] : 0);
}
