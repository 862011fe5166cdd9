// FarPlaces are two places of device memory that are more than 4 GiB apart, for tensors of which parts lie in both.
// Buffers are allocated until two of them are that far apart, and little of them is ever touched.
#pragma once

#include <mutex>

#include "guarded.hpp"

namespace vkattn::test {

constexpr uint64_t unit_bytes = 256;  // what the addresses of tensors in far places are multiples of

class FarPlaces {
  public:
    static constexpr uint64_t buffer_bytes = uint64_t{1} << 30;  // of each place

    // Waits until no other FarPlaces exist, because two of them may need more memory than the device has.
    explicit FarPlaces(Device& device);

    // Says why there are no such places; it is empty where there are.
    const std::string& obstacle() const { return obstacle_; }
    uint64_t distance() const;
    const Buffer& at(uint64_t place) const { return buffers_[place == 0 ? low_ : high_]; }

  private:
    std::string find(Device& device);

    std::unique_lock<std::mutex> lock_;
    std::string obstacle_;
    std::vector<Buffer> buffers_;
    size_t low_ = 0, high_ = 0;
};

}  // namespace vkattn::test
