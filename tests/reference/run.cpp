// vkattn_reference: attention problems in .npy files and their answers, by the fp64 oracle. It shares no code with the
// library. `make` writes q.npy, k.npy and v.npy of a small transformer layer that reads a text, and what belongs to it;
// `check` recomputes attention and holds out (and lse) to the error rule; `check-grad` does so with gradients;
// `quantise` makes ggml's blocks of a tensor, and `decode` gives their values back.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "commands.hpp"

namespace reference {

int run(int argc, char** argv) {
    CLI::App app("attention problems in .npy files and their fp64 answers", "vkattn_reference");
    app.require_subcommand(1);
    MakeOptions make_options;
    CheckOptions check_options;
    CheckGradOptions check_grad_options;
    CLI::App& make_command = *app.add_subcommand("make", "write q.npy, k.npy and v.npy of a small problem");
    CLI::App& check_command = *app.add_subcommand("check", "hold a result to the error rule");
    CLI::App& check_grad_command = *app.add_subcommand("check-grad", "hold gradients to the error rule");
    BlocksOptions quantise_options, decode_options;
    CLI::App& quantise_command = *app.add_subcommand("quantise", "make blocks of a tensor, as uint8");
    CLI::App& decode_command = *app.add_subcommand("decode", "the values of blocks, as float32");
    declare_blocks(quantise_command, quantise_options);
    declare_blocks(decode_command, decode_options);
    declare_make(make_command, make_options);
    declare_check(check_command, check_options);
    declare_check_grad(check_grad_command, check_grad_options);
    try {
        app.parse(argc, argv);
        if (make_command.parsed()) return make(make_options);
        if (quantise_command.parsed()) return quantise(quantise_options);
        if (decode_command.parsed()) return decode(decode_options);
        return check_command.parsed() ? check(check_options, stdout) : check_grad(check_grad_options, stdout);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    } catch (const std::exception& error) {
        fmt::print(stderr, "vkattn_reference: {}\n", error.what());
        return 2;
    }
}

}  // namespace reference
