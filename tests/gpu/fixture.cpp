#include "fixture.hpp"

#include <fmt/format.h>

#include "guarded.hpp"
#include "interposer.hpp"
#include "skip.hpp"
#include "vulkan/context.hpp"

namespace vkattn::test {
namespace {

// Most of a run's time goes into building pipelines. Those of throwaway contexts are not counted.
std::string print_pipelines() {
    size_t built = shared_context().get()->pipelines.size();
    for (const int index : {0, 1}) built += Device::get(index).runtime().context()->pipelines.size();
    fmt::print("{} pipelines built on {}\n", built, Device::get().info().name);
    return "";
}

}  // namespace

Device& Device::get(int index) {
    // Never destroyed: driver and layer have statics of their own, which may go first.
    static Device* const devices[2] = {[] {
                                           // Before there is any driver thread in this process: children would miss it.
                                           start_guard_probes();
                                           return std::make_unique<Device>(true).release();
                                       }(),
                                       std::make_unique<Device>(true).release()};
    static const bool told = [] {
        if (!devices[0]->validated_) skip("validation of the GPU tests: the layer is not installed");
        if (!devices[0]->guard_pages_)
            skip("guard pages: addresses of " + devices[0]->info().name +
                 " are no host pointers; sentinels instead");
        at_end_of_run(print_pipelines);
        return true;
    }();
    return *devices[told ? index : 0];
}

OnDevice::~OnDevice() {
    for (const std::string& message : device.take_messages()) FAIL_CHECK("validation: " << message);
}

}  // namespace vkattn::test
