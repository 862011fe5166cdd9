#include "run_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace vkattn::test {

VkDeviceAddress RunMemory::add(const char* name, std::span<const std::byte> content,
                               std::vector<bool> written, uint32_t alignment_bytes) {
    Guarded memory(device_, content.size(), place_, alignment_bytes, usage_);
    memory.write(content);
    if (written.empty()) memory.protect();
    parts_.push_back({name, std::move(memory), {content.begin(), content.end()}, std::move(written)});
    return parts_.back().memory.address();
}

VkDeviceAddress RunMemory::input(const char* name, std::span<const std::byte> content,
                                 uint32_t alignment_bytes) {
    return add(name, content, {}, alignment_bytes);
}

VkDeviceAddress RunMemory::output(const char* name, uint64_t size_bytes, uint32_t alignment_bytes) {
    return add(name, filled(size_bytes, old_content_), std::vector<bool>(size_bytes, true), alignment_bytes);
}

VkDeviceAddress RunMemory::output(const char* name, const Tensor& layout, uint32_t alignment_bytes) {
    const std::vector<bool> covered = layout.covered();
    return add(name, filled(covered.size(), old_content_), covered, alignment_bytes);
}

std::vector<std::byte> RunMemory::content(std::string_view name) const {
    const auto part = std::ranges::find(parts_, name, &Part::name);
    return part == parts_.end() ? std::vector<std::byte>{} : part->memory.read();
}

std::vector<float> RunMemory::floats(std::string_view name) const {
    const std::vector<std::byte> bytes = content(name);
    std::vector<float> x(bytes.size() / sizeof(float));
    if (!x.empty()) std::memcpy(x.data(), bytes.data(), bytes.size());
    return x;
}

std::vector<std::byte> RunMemory::results() const {
    std::vector<std::byte> all;
    for (const Part& part : parts_) {
        if (part.name == "scratch" || part.written.empty()) continue;
        const std::vector<std::byte> now = part.memory.read();
        for (size_t i = 0; i < now.size(); i++)
            if (part.written[i]) all.push_back(now[i]);
    }
    return all;
}

std::string RunMemory::damage() const {
    for (const auto& [name, memory, before, written] : parts_) {
        if (!memory.intact()) return fmt::format("memory beside {} was written to", name);
        const std::vector<std::byte> now = memory.read();
        if (now == before) continue;
        for (size_t i = 0; i < now.size(); i++)
            if ((written.empty() || !written[i]) && now[i] != before[i])
                return fmt::format("{} was written to, at byte {}{}", name, i,
                                   written.empty() ? "" : ", in its padding");
    }
    return "";
}

}  // namespace vkattn::test
