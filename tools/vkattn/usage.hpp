// Errors of the command line itself, said so that the next attempt succeeds.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace vkattn::tools {

// `vkattn help [COMMAND]` and `vkattn version`, as words.
void add_help(CLI::App& app);
void add_version(CLI::App& app);

// One line about why the arguments could not be parsed: a word that nothing has asked for comes before what its absence
// leads to.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error);

// A line for each subcommand.
std::string command_list(const CLI::App& app);

// Returns what may help where there is no Vulkan, or no device that vkattn can use. It goes behind the line that says
// so.
std::string device_hint();

}  // namespace vkattn::tools
