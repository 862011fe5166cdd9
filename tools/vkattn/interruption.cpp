#include "interruption.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include <csignal>
#include <string_view>

#include "common.hpp"

namespace vkattn::tools {
namespace {

const char* stop_line = "";

extern "C" void request_stop(int number) {
    stop_requested() = true;
    std::signal(number, SIG_DFL);
    const std::string_view line = stop_line;
    if (::write(STDERR_FILENO, line.data(), line.size()) < 0) return;  // there is nobody to tell
}

}  // namespace

std::atomic<bool>& stop_requested() {
    static std::atomic<bool> requested = false;
    return requested;
}

void stop_on_signals(const char* line) {
    stop_line = line;
    std::signal(SIGINT, request_stop);
    std::signal(SIGTERM, request_stop);
    std::signal(SIGHUP, request_stop);  // This one is sent when the terminal goes away.
}

void end_if_interrupted() {
    if (!stop_requested()) return;
    fmt::print(stderr, "vkattn: interrupted: what was measured by then is all there is\n");
    throw ExitCode{exit_not_right};
}

}  // namespace vkattn::tools
