#version 460
// to[i] = a[i] + scale * b[i]: all that gradient descent needs beside attention. `to` may be `a`.
#extension GL_EXT_buffer_reference : require
layout(local_size_x = 64) in;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float x[]; };
layout(push_constant, std430) uniform Push {
    Floats a, b, to;
    float scale;
    uint count;
};

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i < count) to.x[i] = a.x[i] + scale * b.x[i];
}
