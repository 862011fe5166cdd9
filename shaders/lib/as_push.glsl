// What the lines of an interface mean in GLSL, second pass: members of the block of push constants. See kernels.def.
#undef CONSTANT
#undef FIELD
#undef FIELD_ARRAY
#define CONSTANT(id, type, name, NAME, value)
#define FIELD(type, name) type name;
#define FIELD_ARRAY(type, name, count) type name[count];
