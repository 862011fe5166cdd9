// vkattn info: the devices, and what vkattn can use on each.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "call.hpp"
#include "common.hpp"
#include "modules.hpp"
#include "usage.hpp"

namespace vkattn::tools {
namespace {

Json units_of(const DeviceInfo& d) {
    return Json::parse(device_units(d.index));
}

Json to_json(const DeviceInfo& d) {
    Json dtypes = Json::object();
    for (const char* type : {"float32", "float16", "bfloat16"})
        dtypes[type] = d.refusal.empty() ? "yes" : d.refusal;
    return {{"index", d.index},
            {"name", d.name},
            {"driver", d.driver},
            {"uuid", d.uuid},
            {"type", d.type},
            {"api_version", version_text(d.api_version)},
            {"subgroup_size", d.subgroup_size},
            {"shared_memory_bytes", d.shared_memory_bytes},
            {"max_invocations", d.max_invocations},
            {"usable", d.refusal.empty()},
            {"refusal", d.refusal},
            {"dtypes", dtypes},
            {"units", units_of(d)}};
}

std::string shape_text(const Json& m) {
    const auto text = [&](const char* name) { return m[name].get<std::string>(); };
    return fmt::format("{}x{}x{} {} x {} + {} = {}", m["m"].get<int>(), m["n"].get<int>(), m["k"].get<int>(),
                       text("a"), text("b"), text("c"), text("result"));
}

// Shapes that the kernels can use come first; each is named once, though it may be there saturating, too.
void print_matrices(const Json& units) {
    std::vector<std::string> shown;
    for (const bool usable : {true, false})
        for (const Json& m : units["matrices"]) {
            if (m["usable"] != usable || std::ranges::find(shown, shape_text(m)) != shown.end()) continue;
            shown.push_back(shape_text(m));
            fmt::print("   matrix {}{}\n", shown.back(), usable ? "" : ", not used");
        }
}

void print_units(const Json& units) {
    print_matrices(units);
    const auto line = [&](const char* what, const char* name) {
        const std::string why_not = units[name]["why_not"];
        fmt::print("   {}: {}\n", what, why_not.empty() ? "yes" : "no, " + why_not);
    };
    line("matrix kernels", "matrix_kernels");
    line("bfloat16 arithmetic", "bfloat16");
    line("bfloat16 on matrix units", "bfloat16_matrices");
    line("fast integer dot products", "integer_dot_products");
}

void print(const DeviceInfo& d) {
    fmt::print("{}  {}\n", d.index, d.name);
    fmt::print("   {}, Vulkan {}, {}, UUID {}\n", d.type, version_text(d.api_version), d.driver, d.uuid);
    fmt::print("   subgroup {}, shared memory {} bytes, {} invocations\n", d.subgroup_size,
               d.shared_memory_bytes, d.max_invocations);
    if (d.refusal.empty()) {
        fmt::print("   forward and backward: float32, float16, bfloat16\n");
    } else {
        fmt::print("   not usable: {}\n", d.refusal);
    }
    print_units(units_of(d));
}

// A device that is too old to be asked does not keep the others from being shown.
void print_profile(const DeviceInfo& d) {
    try {
        fmt::print("{}", device_profile(d.index));
    } catch (const RuntimeError& error) {
        fmt::print("# {}: {}\n", d.name, error.what());
    }
}

}  // namespace

void add_info(CLI::App& app) {
    CLI::App* sub = app.add_subcommand("info", "Devices, what vkattn can use on each, what not and why");
    auto json = std::make_shared<bool>(false);
    auto profile = std::make_shared<bool>(false);
    auto* as_json = sub->add_flag("--json", *json, "One JSON object on stdout");
    auto* as_profile =
        sub->add_flag("--profile", *profile,
                      "Each device in the format of tests/profiles: to send in one that vkattn does not know")
            ->excludes(as_json);
    auto modules = std::make_shared<bool>(false);
    sub->add_flag("--modules", *modules,
                  "Instead: the compiled kernels, and how each is compiled in shaders/")
        ->excludes(as_json)
        ->excludes(as_profile);
    sub->callback([json, profile, modules] {
        if (*modules) {
            print_modules();
            return;
        }
        const std::vector<DeviceInfo> devices = list_devices();
        if (*json) {
            Json all = Json::array();
            for (const DeviceInfo& d : devices) all.push_back(to_json(d));
            fmt::print("{}\n", Json{{"version", vkattn_version()}, {"devices", all}}.dump());
            return;
        }
        if (devices.empty()) throw RuntimeError("there is no Vulkan device on this machine" + device_hint());
        if (*profile) {
            for (const DeviceInfo& d : devices) print_profile(d);
            return;
        }
        for (const DeviceInfo& d : devices) print(d);
    });
}

}  // namespace vkattn::tools
