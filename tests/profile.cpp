#include "profile.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace vkattn::test {
namespace {

constexpr std::string_view blank = " \t\r\n";

// The words of a profile that have the form key=value or key="value with spaces"; others say nothing to the
// planner.
class Values {
  public:
    Values(std::string_view text, std::string file) : file_(std::move(file)) {
        while (true) {
            text.remove_prefix(std::min(text.find_first_not_of(blank), text.size()));
            if (text.empty()) return;
            const std::string_view word = text.substr(0, word_length(text));
            text.remove_prefix(word.size());
            if (const size_t equals = word.find('='); equals != word.npos)
                words_.emplace_back(word.substr(0, equals), word.substr(equals + 1));
        }
    }

    [[noreturn]] void fail(std::string_view key, std::string_view why) const {
        throw std::runtime_error(fmt::format("{}: {} {}", file_, key, why));
    }

    bool has(std::string_view key) const {
        return std::any_of(words_.begin(), words_.end(), [&](const auto& word) { return word.first == key; });
    }

    std::string_view text(std::string_view key) const {
        const auto named = [&](const auto& word) { return word.first == key; };
        const auto found = std::find_if(words_.begin(), words_.end(), named);
        if (found == words_.end()) fail(key, "is missing");
        if (std::find_if(std::next(found), words_.end(), named) != words_.end())
            fail(key, "stands there twice");
        return found->second;
    }

    template <class T>
    T number(std::string_view key) const {
        return number_in<T>(key, text(key));
    }

    std::array<uint32_t, 3> three(std::string_view key) const {
        std::string_view rest = text(key);
        std::array<uint32_t, 3> out{};
        for (size_t i = 0; i < 3; i++) {
            const size_t comma = rest.find(',');
            if ((comma == rest.npos) != (i == 2)) fail(key, "does not hold three numbers");
            out[i] = number_in<uint32_t>(key, rest.substr(0, comma));
            rest.remove_prefix(std::min(rest.size(), comma + 1));
        }
        return out;
    }

    bool flag(std::string_view key) const {
        const auto value = number<uint32_t>(key);
        if (value > 1) fail(key, "is neither 0 nor 1");
        return value != 0;
    }

    std::string quoted(std::string_view key) const {
        const std::string_view value = text(key);
        if (value.size() < 2 || value.front() != '"' || value.back() != '"') fail(key, "is not quoted");
        return std::string(value.substr(1, value.size() - 2));
    }

    uint32_t version(std::string_view key) const {
        const std::string_view value = text(key);
        const size_t dot = value.find('.');
        if (dot == value.npos) fail(key, "is not major.minor");
        const auto major = number_in<uint32_t>(key, value.substr(0, dot));
        const auto minor = number_in<uint32_t>(key, value.substr(dot + 1));
        return major << 22 | minor << 12;
    }

  private:
    size_t word_length(std::string_view text) const {
        bool quote = false;
        for (size_t i = 0; i < text.size(); i++) {
            if (text[i] == '"') quote = !quote;
            if (!quote && blank.find(text[i]) != blank.npos) return i;
        }
        if (quote) fail(text.substr(0, text.find('=')), "has no closing quote");
        return text.size();
    }

    template <class T>
    T number_in(std::string_view key, std::string_view digits) const {
        const bool hex = digits.starts_with("0x");
        if (hex) digits.remove_prefix(2);
        T value{};
        const char* const end = digits.data() + digits.size();
        const auto parsed = std::from_chars(digits.data(), end, value, hex ? 16 : 10);
        if (parsed.ec != std::errc{} || parsed.ptr != end) fail(key, "does not hold a number that fits");
        return value;
    }

    std::string file_;
    std::vector<std::pair<std::string_view, std::string_view>> words_;
};

}  // namespace

core::DeviceCaps parse_profile(std::string_view text, const std::string& file) {
    const Values values(text, file);
    core::DeviceCaps caps;
    caps.name = values.quoted("device");
    caps.vendor_id = values.number<uint32_t>("vendor");
    const auto type = values.number<uint32_t>("type");
    if (type > static_cast<uint32_t>(core::DeviceType::cpu)) values.fail("type", "is not a device type");
    caps.type = static_cast<core::DeviceType>(type);
    caps.api_version = values.version("api");
    // The first profiles had neither.
    if (values.has("driverID")) caps.driver_id = values.number<uint32_t>("driverID");
    // The first profiles are of Mesa 26.1, and do not say so.
    caps.mesa_version =
        values.has("driver") ? core::mesa_version_in(values.quoted("driver")) : core::mesa_number(26, 1, 0);
    if (values.has("sms")) caps.multiprocessors = values.number<uint32_t>("sms");
    if (values.has("vgprs"))
        caps.simd_registers = core::simd_registers_of(caps.driver_id, values.number<uint32_t>("vgprs"));
    caps.subgroup_size = values.number<uint32_t>("sg");
    caps.max_shared_bytes = values.number<uint32_t>("shmem");
    caps.max_invocations = values.number<uint32_t>("wginv");
    caps.max_workgroup_size = values.three("wgsize");
    caps.max_workgroup_count = values.three("wgcount");
    caps.max_push_constant_bytes = values.number<uint32_t>("pc");
    caps.max_buffer_bytes = values.number<uint64_t>("maxAlloc");
    caps.buffer_device_address = values.flag("bda");
    caps.storage_16bit = values.flag("s16");
    if (values.has("dotf16")) caps.dot_float16 = values.flag("dotf16");
    if (values.has("dotbf16")) caps.dot_bfloat16 = values.flag("dotbf16");
    return caps;
}

void add_matrix_units(core::DeviceCaps& caps, std::string_view text) {
    const auto has = [&](std::string_view words) { return text.find(words) != text.npos; };
    const size_t range = text.find("sg=");
    if (range == text.npos || std::sscanf(text.data() + range, "sg=%*u [%u..%u]", &caps.min_subgroup_size,
                                          &caps.max_subgroup_size) != 2)
        throw std::runtime_error("no range of subgroup sizes");
    unsigned stages = 0;
    if (const size_t at = text.find("reqStages="); at != text.npos)
        std::sscanf(text.data() + at, "reqStages=%x", &stages);
    constexpr unsigned compute = 0x20;
    caps.subgroup_size_control = has("sizectl=1") && (stages & compute) != 0;
    caps.full_subgroups = has("full=1");
    caps.int64 =
        true;  // the profiles do not say; the drivers of devices with matrix units have it everywhere
    caps.matrix_conversions = has("reduc=1") && has("conv=1");
    std::istringstream lines{std::string(text)};
    for (std::string line; std::getline(lines, line);) {
        core::MatrixShape shape;
        char type[8] = {};
        if (std::sscanf(line.c_str(), " KHR %ux%ux%u A=%7[a-z0-9]", &shape.m, &shape.n, &shape.k, type) != 4)
            continue;
        const std::string name = type;
        if ((name != "f16" && name != "bf16") || line.find(" C=f32 R=f32 ") == line.npos) continue;
        shape.dtype = name == "f16" ? VKATTN_DTYPE_FLOAT16 : VKATTN_DTYPE_BFLOAT16;
        shape.rounded = name == "f16" && has(fmt::format("KHR {}x{}x{} A={} B={} C={} R={} ", shape.m,
                                                         shape.n, shape.k, name, name, name, name));
        caps.matrices.push_back(shape);
    }
}

core::DeviceCaps load_with_matrix_units(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(path.string() + ": cannot be read");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    core::DeviceCaps caps = parse_profile(text, path.string());
    add_matrix_units(caps, text);
    return caps;
}

Profile load_profile(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(path.string() + ": cannot be read");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return {path.stem().string(), parse_profile(text, path.string())};
}

std::vector<Profile> load_profiles(const std::filesystem::path& folder) {
    std::vector<Profile> profiles;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().extension() == ".txt") profiles.push_back(load_profile(entry.path()));
    if (profiles.empty()) throw std::runtime_error(folder.string() + ": holds no profiles");
    std::sort(profiles.begin(), profiles.end(),
              [](const Profile& a, const Profile& b) { return a.name < b.name; });
    return profiles;
}

}  // namespace vkattn::test
