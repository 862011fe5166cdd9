// vkattn: attention and its gradients from .npy to .npy, what a device can do, how a problem would be
// planned, how fast it is.
//
// Exit codes: 0 done; 1 standard output cannot be written; 2 bad usage or input, one line on stderr naming the
// argument; 3 device, driver or UNSUPPORTED; 4 conformance or report found a fault, or one of them or bench was
// interrupted; 5 bench --compare found a case that is slower.
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "call.hpp"
#include "common.hpp"
#include "console.hpp"
#include "usage.hpp"

using namespace vkattn;
using namespace vkattn::tools;

namespace {

constexpr int exit_output = 1;  // the others are in common.hpp

std::string one_line(std::string text) {
    for (char& c : text)
        if (c == '\n' || c == '\r') c = ' ';
    return text;
}

int fail(int code, const std::string& text) {
    fmt::print(stderr, "vkattn: {}\n", one_line(text));
    return code;
}

// What was printed is only known to have arrived when the buffer is empty.
int finish_output() {
    const bool failed_before = std::ferror(stdout) != 0;
    if (std::fflush(stdout) == 0 && !failed_before) return exit_done;
    return fail(exit_output, failed_before ? "standard output: part of it cannot be written"
                                           : fmt::format("standard output: {}", std::strerror(errno)));
}

int run(CLI::App& app, int argc, char** argv) {
    try {
        app.parse(argc, argv);
        return exit_done;
    } catch (const CLI::Success& e) {
        return app.exit(e);  // --help, --version
    } catch (const CLI::ParseError& e) {
        fail(exit_usage, usage_error(app, e));
        // Nobody has asked for it, so it does not go to stdout.
        if (argc == 1) fmt::print(stderr, "{}", command_list(app));
        return exit_usage;
    } catch (const ExitCode& e) {
        std::fflush(stdout);
        return e.code;
    } catch (const UsageError& e) {
        return fail(exit_usage, e.what());
    } catch (const std::exception& e) {
        if (std::ferror(stdout) != 0) return exit_done;  // finish_output says it
        const auto* const of_runtime = dynamic_cast<const RuntimeError*>(&e);
        const bool no_device = of_runtime != nullptr && of_runtime->status() == VKATTN_UNSUPPORTED;
        return fail(exit_device, e.what() + (no_device ? device_hint() : ""));
    }
}

}  // namespace

int main(int argc, char** argv) {
    prepare_console();
    CLI::App app("Exact attention on any Vulkan device, without the seqlen_q x seqlen_kv matrix.", "vkattn");
    argv = app.ensure_utf8(argv);
    keep_arguments(argc, argv);
    app.set_version_flag("--version", std::string("vkattn ") + vkattn_version());
    app.require_subcommand(1);
    app.footer(
        "Exit codes: 0 done; 1 standard output cannot be written; 2 bad usage or input, in one line that "
        "names the argument; 3 device, driver, or a problem that the device does not support; 4 conformance "
        "or report found a fault, or one of them or bench was interrupted; 5 bench --compare found a case "
        "that is "
        "slower.");
    add_info(app);
    add_run(app);
    add_grad(app);
    add_explain(app);
    add_bench(app);
    add_conformance(app);
    add_report(app);
    add_help(app);
    add_version(app);
    const int code = run(app, argc, argv);
    return code == exit_done ? finish_output() : code;
}
