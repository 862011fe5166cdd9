// Gives the lines of an interface (kernels.def) their first meaning in GLSL: specialization constants.
#define KERNEL(name)
#define KERNEL_END(name)
#define CONSTANT(type, name, NAME, value) layout(constant_id = ID_##NAME) const type NAME = value;
#define FIELD(type, name)
#define FIELD_ARRAY(type, name, count)
