// Two places of device memory that are more than 4 GiB apart, for tensors of which parts lie in both. Buffers are
// allocated until two of them are that far apart, and little of them is ever touched.
#pragma once

#include <mutex>

#include "device.hpp"

namespace vkattn::test {

class FarPlaces {
  public:
    static constexpr uint64_t buffer_bytes = uint64_t{1} << 30;  // of each place

    // To be held for as long as there are places: two pairs of them may need more memory than the device has.
    static std::mutex& one_at_a_time();

    // Returns why there are no such places, "" if there are.
    std::string find(Device& device);
    uint64_t distance() const;
    const Buffer& at(uint64_t place) const { return buffers_[place == 0 ? low_ : high_]; }

  private:
    std::vector<Buffer> buffers_;
    size_t low_ = 0, high_ = 0;
};

}  // namespace vkattn::test
