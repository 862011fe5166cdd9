#include "far_places.hpp"

#include <fmt/format.h>

namespace vkattn::test {
namespace {

constexpr uint64_t least_distance = (uint64_t{1} << 32) + FarPlaces::buffer_bytes / 2;
constexpr size_t most_buffers = 8;

}  // namespace

FarPlaces::FarPlaces(Device& device) {
    static std::mutex one_at_a_time;
    lock_ = std::unique_lock(one_at_a_time);
    obstacle_ = find(device);
}

std::string FarPlaces::find(Device& device) {
    while (distance() < least_distance) {
        if (buffers_.size() == most_buffers)
            return fmt::format("{} buffers of 1 GiB do not lie 4 GiB apart", most_buffers);
        try {
            buffers_.push_back(device.runtime().allocate(buffer_bytes));
        } catch (const RuntimeError& e) {
            if (e.status() == VKATTN_DEVICE_LOST) throw;
            return fmt::format("memory that lies 4 GiB apart: {}", e.what());
        }
        const size_t made = buffers_.size() - 1;
        if (buffers_[made].address() < buffers_[low_].address()) low_ = made;
        if (buffers_[made].address() > buffers_[high_].address()) high_ = made;
    }
    return "";
}

uint64_t FarPlaces::distance() const {
    return buffers_.empty() ? 0 : buffers_[high_].address() - buffers_[low_].address();
}

}  // namespace vkattn::test
