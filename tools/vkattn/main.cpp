// vkattn: attention and its gradients from .npy to .npy, what a device can do, how a problem would be
// planned, how fast it is.
//
// Exit codes: 0 done; 2 bad usage or input, one line on stderr naming the argument; 3 device, driver or
// UNSUPPORTED.
#include <cstdio>

#include <fmt/format.h>

#include "common.hpp"

using namespace vkattn;
using namespace vkattn::tools;

namespace {

std::string one_line(std::string text) {
    for (char& c : text)
        if (c == '\n' || c == '\r') c = ' ';
    return text;
}

int fail(int code, const std::string& text) {
    fmt::print(stderr, "vkattn: {}\n", one_line(text));
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Exact attention on any Vulkan device, without the seqlen_q x seqlen_kv matrix.", "vkattn");
    app.set_version_flag("--version", std::string("vkattn ") + vkattn_version());
    app.require_subcommand(1);
    add_info(app);
    add_run(app);
    add_grad(app);
    add_explain(app);
    add_bench(app);
    try {
        app.parse(argc, argv);
        return exit_done;
    } catch (const CLI::Success& e) {
        return app.exit(e);  // --help, --version
    } catch (const CLI::ParseError& e) {
        if (app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-')
            return fail(
                exit_usage,
                fmt::format("'{}' is no subcommand; there are info, run, grad, explain, bench", argv[1]));
        return fail(exit_usage, e.what());
    } catch (const UsageError& e) {
        return fail(exit_usage, e.what());
    } catch (const std::exception& e) {
        return fail(exit_device, e.what());
    }
}
