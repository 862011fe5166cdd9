#pragma once

namespace reference {

// The program vkattn_reference, but for main: the exit code, 2 after an error.
int run(int argc, char** argv);

}  // namespace reference
