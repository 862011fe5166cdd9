// vkattn info: the devices, and what vkattn can use on each.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "call.hpp"
#include "common.hpp"

namespace vkattn::tools {
namespace {

Json to_json(const DeviceUnits& units) {
    Json matrices = Json::array();
    for (const MatrixUnit& m : units.matrices)
        matrices.push_back({{"m", m.m},
                            {"n", m.n},
                            {"k", m.k},
                            {"a", m.a},
                            {"b", m.b},
                            {"c", m.c},
                            {"result", m.result},
                            {"usable", m.usable}});
    const auto available = [](const std::string& why_not) {
        return Json{{"available", why_not.empty()}, {"why_not", why_not}};
    };
    return {{"matrices", matrices},
            {"matrix_kernels", available(units.no_matrices)},
            {"bfloat16", available(units.no_bfloat16)},
            {"bfloat16_matrices", available(units.no_bfloat16_matrices)},
            {"integer_dot_products", available(units.no_dot_products)}};
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
            {"units", to_json(device_units(d.index))}};
}

std::string shape_text(const MatrixUnit& m) {
    return fmt::format("{}x{}x{} {} x {} + {} = {}", m.m, m.n, m.k, m.a, m.b, m.c, m.result);
}

// Shapes that the kernels can use come first; each is named once, though it may be there saturating, too.
void print_matrices(const DeviceUnits& units) {
    std::vector<std::string> shown;
    for (const bool usable : {true, false})
        for (const MatrixUnit& m : units.matrices) {
            if (m.usable != usable || std::ranges::find(shown, shape_text(m)) != shown.end()) continue;
            shown.push_back(shape_text(m));
            fmt::print("   matrix {}{}\n", shown.back(), usable ? "" : ", not used");
        }
    if (!units.no_matrices.empty()) fmt::print("   no matrix kernels: {}\n", units.no_matrices);
}

void print_units(const DeviceUnits& units) {
    print_matrices(units);
    const auto line = [](const char* what, const std::string& why_not) {
        fmt::print("   {}: {}\n", what, why_not.empty() ? "yes" : "no, " + why_not);
    };
    line("bfloat16 arithmetic", units.no_bfloat16);
    line("bfloat16 on matrix units", units.no_bfloat16_matrices);
    line("fast integer dot products", units.no_dot_products);
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
    print_units(device_units(d.index));
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
    sub->add_flag("--profile", *profile,
                  "Each device in the format of tests/profiles: to send in one that vkattn does not know")
        ->excludes(as_json);
    sub->callback([json, profile] {
        const std::vector<DeviceInfo> devices = list_devices();
        if (*json) {
            Json all = Json::array();
            for (const DeviceInfo& d : devices) all.push_back(to_json(d));
            fmt::print("{}\n", Json{{"version", vkattn_version()}, {"devices", all}}.dump());
            return;
        }
        if (devices.empty()) throw RuntimeError("there is no Vulkan device on this machine");
        if (*profile) {
            for (const DeviceInfo& d : devices) print_profile(d);
            return;
        }
        for (const DeviceInfo& d : devices) print(d);
    });
}

}  // namespace vkattn::tools
