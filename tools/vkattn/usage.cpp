#include "usage.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "common.hpp"
#include "typos.hpp"

namespace vkattn::tools {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(sub->get_name());
    return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return names;
}

std::string no_command(const CLI::App& app, const std::string& word) {
    const std::vector<std::string> names = command_names(app);
    return fmt::format("'{}' is no subcommand; there are {}{}", word, fmt::join(names, ", "),
                       did_you_mean(word, names));
}

bool is_option(const std::string& word) {
    return word.size() > 1 && word[0] == '-' && (word[1] < '0' || word[1] > '9') && word[1] != '.';
}

// Options of attention that people know from elsewhere, and what each would do. Whoever adds one takes its line away.
constexpr std::pair<std::string_view, std::string_view> future_options[] = {
    {"--alibi-slopes", "the slopes of ALiBi are given by --alibi"},
    {"--cu-seqlens", "packed sequences of different lengths are not supported yet"},
    {"--dropout", "dropout is not supported yet"},
    {"--page-table", "paged keys and values are not supported yet"},
    {"--sink", "attention sinks are given by --sinks"},
};

// Returns what is said of such an option; "" of another one.
std::string_view future_option(std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    const auto* const found = std::find_if(std::begin(future_options), std::end(future_options),
                                           [&](const auto& option) { return option.first == name; });
    return found == std::end(future_options) ? std::string_view() : found->second;
}

bool takes_attention(const CLI::App& command) {
    return command.get_option_no_throw("--causal") != nullptr;
}

// `before`: no subcommand had been named yet.
std::string no_option(const CLI::App& app, const CLI::App& command, const std::string& word, bool before) {
    const std::string name = word.substr(0, word.find('='));
    if (before || takes_attention(command))
        if (const std::string_view future = future_option(name); !future.empty())
            return fmt::format("{}: {}", name, future);
    if (before)
        for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
            if (sub->get_option_no_throw(name) != nullptr)
                return fmt::format("{}: a subcommand's options come after its name, as in vkattn {} {}", name,
                                   sub->get_name(), name);
    return fmt::format("{}: is no option of {}{}", name, before ? "vkattn" : command.get_name(),
                       did_you_mean(name, option_names(command)));
}

}  // namespace

void add_help(CLI::App& app) {
    CLI::App* sub = app.add_subcommand("help", "What a subcommand is for, and its options");
    auto command = std::make_shared<std::string>();
    sub->add_option("COMMAND", *command, "One of the subcommands; default: all in short");
    sub->callback([&app, command] {
        const CLI::App* about = command->empty() ? &app : app.get_subcommand_no_throw(*command);
        if (about == nullptr) throw UsageError("help", no_command(app, *command));
        // App::help would go on to the subcommand that was named, and that is help itself.
        const std::string name = about == &app ? app.get_name() : app.get_name() + " " + *command;
        fmt::print("{}", app.get_formatter()->make_help(about, name, CLI::AppFormatMode::Normal));
    });
}

void add_version(CLI::App& app) {
    app.add_subcommand("version", "The version, as --version")->callback([&app] {
        fmt::print("{}\n", app.version());
    });
}

std::string command_list(const CLI::App& app) {
    std::string lines;
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
        lines += fmt::format("  {:12} {}\n", sub->get_name(), sub->get_description());
    return lines;
}

std::string device_hint() {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody here sets it
    const char* const named = std::getenv("VKATTN_ON");
    if (named == nullptr || *named == 0 || named == std::string_view("system"))
        return "; in a source checkout, tools/on lavapipe -- vkattn ... runs on the CPU";
    return fmt::format(
        "; tools/on has named the device {0}: a program that does not see it is to be started by "
        "tools/on {0} -- PROGRAM",
        named);
}

std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
    const auto chosen = app.get_subcommands();
    if (chosen.empty() && app.remaining().empty() &&
        dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)
        return "a subcommand is needed; vkattn help SUBCOMMAND tells more of it";
    const CLI::App& command = chosen.empty() ? app : *chosen.front();
    const std::vector<std::string> before = app.remaining(), after = command.remaining();
    if (!before.empty() && !is_option(before.front())) return no_command(app, before.front());
    for (const auto* words : {&before, &after}) {
        const auto option = std::find_if(words->begin(), words->end(), is_option);
        if (option != words->end()) return no_option(app, command, *option, words == &before);
    }
    if (!after.empty())
        return fmt::format("{}: is not expected; all that {} takes are options{}", after.front(),
                           command.get_name(), did_you_mean(after.front(), option_names(command)));
    return error.what();
}

}  // namespace vkattn::tools
