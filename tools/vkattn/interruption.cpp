#include "interruption.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <string_view>

#ifdef _WIN32
#include <io.h>
#else
#include <unistd.h>
#endif

#include "common.hpp"
#include "progress.hpp"

namespace vkattn::tools {
namespace {

const char* stop_line = "";

// Sent when the terminal goes away, and on Windows by Ctrl-Break, too.
#ifdef _WIN32
constexpr int signal_of_terminal = SIGBREAK;
#else
constexpr int signal_of_terminal = SIGHUP;
#endif

// In a handler of signals nothing else may write. If it fails, there is nobody to tell.
void write_to_stderr(std::string_view line) {
#ifdef _WIN32
    _write(2, line.data(), static_cast<unsigned>(line.size()));
#else
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
#endif
}

extern "C" void request_stop(int number) {
    const int kept = errno;
    stop_requested() = true;
    std::signal(number, SIG_DFL);
    write_to_stderr(stop_line);
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
    stop_on(signal_of_terminal);
}

void end_if_interrupted() {
    if (!stop_requested()) return;
    print_warning("interrupted: what was measured by then is all there is");
    throw ExitCode{exit_not_right};
}

}  // namespace vkattn::tools
