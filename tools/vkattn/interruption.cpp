#include "interruption.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <string_view>

#include "common.hpp"
#include "progress.hpp"

namespace vkattn::tools {
namespace {

const char* stop_line = "";

extern "C" void request_stop(int number) {
    const int kept = errno;
    stop_requested() = true;
    std::signal(number, SIG_DFL);
    const std::string_view line = stop_line;
    // If it fails, there is nobody to tell.
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
    errno = kept;
}

// A signal that the program was started to ignore, as by nohup, stays ignored.
void stop_on(int number) {
    if (std::signal(number, request_stop) == SIG_IGN) std::signal(number, SIG_IGN);
}

}  // namespace

std::atomic<bool>& stop_requested() {
    static std::atomic<bool> requested = false;
    return requested;
}

void stop_on_signals(const char* line) {
    stop_line = line;
    stop_on(SIGINT);
    stop_on(SIGTERM);
    stop_on(SIGHUP);  // This one is sent when the terminal goes away.
}

void end_if_interrupted() {
    if (!stop_requested()) return;
    print_warning("interrupted: what was measured by then is all there is");
    throw ExitCode{exit_not_right};
}

}  // namespace vkattn::tools
