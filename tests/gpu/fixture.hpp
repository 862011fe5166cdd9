// Test cases share the devices of the process, whose validation messages fail the test case that caused them.
#pragma once

#include <doctest/doctest.h>

#include "device.hpp"

namespace vkattn::test {

// Fixture of the tests that use the device. Every validation message fails the test case that caused it.
struct OnDevice {
    OnDevice() = default;
    OnDevice(const OnDevice&) = delete;
    ~OnDevice();
    Device& device = Device::get();
    Runtime& runtime = device.runtime();
};

}  // namespace vkattn::test
