// What the lines of an interface mean in GLSL, first pass: specialization constants. See kernels.def.
#define KERNEL(name)
#define KERNEL_END(name)
#define MODULE(name, macros, needs, forms)
#define CONSTANT(id, type, name, NAME, value) layout(constant_id = id) const type NAME = value;
#define FIELD(type, name)
#define FIELD_ARRAY(type, name, count)
