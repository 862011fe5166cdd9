// Ctrl-C, SIGTERM and SIGHUP in work that takes minutes: the first one lets what is under way finish, so that what is
// known by then can be said.
#pragma once

#include <atomic>

namespace vkattn::tools {

// Set by the first signal, or by who wants no more work to begin.
std::atomic<bool>& stop_requested();

// From here on the first signal prints this line on stderr and requests a stop. A second one ends the program, should
// the device hang. `line` lives as long as the program.
void stop_on_signals(const char* line);

// If a stop was requested, says on stderr that what was printed is not all, and throws the exit code for that.
void end_if_interrupted();

}  // namespace vkattn::tools
