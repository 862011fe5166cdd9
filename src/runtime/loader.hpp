// Where the runtime has Vulkan from: the system's loader, unless a test stands between.
#pragma once

#include <vulkan/vulkan_core.h>

namespace vkattn::runtime {

// Takes the loader's function, and returns the one that the runtime is to use. Instances that are made while this is
// not null, and all that is made with them, go through it. It is for the tests of this repository, of which no other
// thread uses the runtime while this changes.
using StandsBetween = PFN_vkGetInstanceProcAddr (*)(PFN_vkGetInstanceProcAddr of_loader);
inline constinit StandsBetween stands_between = nullptr;

// The loader's library, closed with this object.
class Loader {
  public:
    Loader();  // throws Error where there is none
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;
    ~Loader();

    PFN_vkGetInstanceProcAddr get_instance_proc_addr() const { return get_; }

  private:
    void* library_ = nullptr;
    PFN_vkGetInstanceProcAddr get_ = nullptr;
};

}  // namespace vkattn::runtime
