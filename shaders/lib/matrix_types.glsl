// The types of the matrix unit, in a file of its own so that tests/emulation can put others in their place. It assumes
// ELEMENT and the specialization constants M, N and K.
#define ACCUMULATOR coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#ifdef ROUNDED_ACCUMULATORS  // not every device has them, and a module that names them is not for others
#define ROUNDED coopmat<ELEMENT, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#endif
#define LEFT coopmat<ELEMENT, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define RIGHT coopmat<ELEMENT, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define ZEROS ACCUMULATOR(0)  // a sum that begins
