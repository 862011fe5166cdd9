// The test of the test: a process that runs past a guarded tensor must die. So each run is a child, with a device of
// its own.
#include <cstdio>

#include "guarded.hpp"

#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#endif

namespace vkattn::test {
namespace {

#if defined(__unix__)

enum class Fault { read_behind, write_before, write_to_input, count };

constexpr uint32_t seqlen = 64, head_dim = 8;
constexpr int exit_no_guard_pages = 77;
pid_t children[static_cast<int>(Fault::count)] = {-1, -1, -1};

// One forward over 64 x 64 rows whose tensors are as large as the problem says, except for the one at fault.
int run_with(Fault fault) {
    Device device(false);
    if (!device.has_guard_pages()) return exit_no_guard_pages;
    constexpr uint64_t bytes = seqlen * head_dim * sizeof(float);
    Guarded query(device, bytes, Place::end), value(device, bytes, Place::end),
        out(device, bytes, Place::start);
    Guarded key(device, fault == Fault::read_behind ? bytes / 2 : bytes, Place::end);
    for (Guarded* tensor : {&query, &key, &value}) {
        tensor->fill(0x3f800000);
        tensor->protect();
    }
    VkattnProblem p = problem();
    p.seqlen_q = p.seqlen_kv = seqlen;
    p.head_dim_qk = p.head_dim_v = head_dim;
    VkattnOptions o = options();
    o.tuning = "threads=4,lanes=1,rows=4,cols=4,chunk=4,p_blocks=1,v_keys=4,prefetch=0";  // compiles fast
    const Plan plan = device.runtime().plan(p, o);
    VkattnForwardArgs args = forward_args();
    // An input that is written to is not this forward's own: it would refuse that.
    args.query = fault == Fault::write_to_input ? value.address() : query.address();
    args.key = key.address();
    args.value = value.address();
    args.out = fault == Fault::write_to_input
                   ? query.address()
                   : out.address() - (fault == Fault::write_before ? sizeof(float) : 0);
    device.runtime().submit([&](VkCommandBuffer commands) { plan.cmd_forward(commands, args); });
    return 0;
}

void start(Fault fault) {
    const pid_t child = fork();
    if (child != 0) {
        children[static_cast<int>(fault)] = child;
        return;
    }
    std::signal(SIGSEGV, SIG_DFL);  // doctest and the sanitizers have handlers
    std::signal(SIGALRM, SIG_DFL);
    alarm(120);
    int code = 1;
    try {
        code = run_with(fault);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "guard page probe: %s\n", e.what());
    }
    _exit(code);
}

std::string fate(Fault fault) {
    int status = 0;
    const pid_t child = children[static_cast<int>(fault)];
    if (child < 0 || waitpid(child, &status, 0) != child) return "no child";
    if (WIFSIGNALED(status))
        return WTERMSIG(status) == SIGSEGV ? "SIGSEGV" : "signal " + std::to_string(WTERMSIG(status));
    return "exit " + std::to_string(WEXITSTATUS(status));
}

#endif

}  // namespace

#if defined(__unix__)

void start_guard_probes() {
    for (const Fault fault : {Fault::read_behind, Fault::write_before, Fault::write_to_input}) start(fault);
}

GuardProbes guard_probes() {
    return {fate(Fault::read_behind), fate(Fault::write_before), fate(Fault::write_to_input)};
}

#else

void start_guard_probes() {}
GuardProbes guard_probes() {
    return {};
}

#endif

}  // namespace vkattn::test
