// Gives the lines of an interface (kernels.def) their first meaning in GLSL: specialization constants.
#define KERNEL(name)
#define KERNEL_END(name)
#define MODULE(name, storage, macros, needs, forms)
#define CONSTANT(id, type, name, NAME, value) layout(constant_id = id) const type NAME = value;
#define FIELD(type, name)
#define FIELD_ARRAY(type, name, count)
