// Gives the lines of an interface (kernels.def) their second meaning in GLSL: members of the block of push constants.
#undef CONSTANT
#undef FIELD
#undef FIELD_ARRAY
#define CONSTANT(type, name, NAME, value)
#define FIELD(type, name) type name;
#define FIELD_ARRAY(type, name, count) type name[count];
