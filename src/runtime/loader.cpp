#include "loader.hpp"

#include <cstdlib>
#include <string>

#include "devices.hpp"

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace vkattn::runtime {
namespace {

// For people who meet Vulkan for the first time.
constexpr const char* how_to_install =
#if defined(_WIN32)
    "the GPU's driver brings it";
#elif defined(__APPLE__)
    "MoltenVK brings it";
#else
    "Debian and Ubuntu have it in libvulkan1; a driver is needed, too: the GPU's, or mesa-vulkan-drivers";
#endif

// Names of the loader's library, the first one first.
constexpr const char* libraries[] = {
#if defined(_WIN32)
    "vulkan-1.dll",
#elif defined(__APPLE__)
    "libvulkan.dylib",
    "libvulkan.1.dylib",
    "/usr/local/lib/libvulkan.dylib",     // of the Vulkan SDK
    "/opt/homebrew/lib/libvulkan.dylib",  // of Homebrew
    "libMoltenVK.dylib",
    "vulkan.framework/vulkan",
    "MoltenVK.framework/MoltenVK",
#else
    "libvulkan.so",
    "libvulkan.so.1",
#endif
};

#if defined(_WIN32)
void* open_library(const char* name) {
    return LoadLibraryA(name);
}
void close_library(void* library) {
    FreeLibrary(static_cast<HMODULE>(library));
}
void* symbol_of(void* library, const char* name) {
    return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}
#else
void* open_library(const char* name) {
#if defined(__APPLE__)
    // Where this variable is set, it says which folders are searched.
    if (std::string(name).starts_with("/usr/local/lib") &&
        std::getenv("DYLD_FALLBACK_LIBRARY_PATH") != nullptr)
        return nullptr;
#endif
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}
void close_library(void* library) {
    dlclose(library);
}
void* symbol_of(void* library, const char* name) {
    return dlsym(library, name);
}
#endif

}  // namespace

Loader::Loader() {
    for (const char* name : libraries)
        if (library_ == nullptr) library_ = open_library(name);
    if (library_ == nullptr)
        fail(VKATTN_UNSUPPORTED,
             std::string("no Vulkan loader (Failed to load vulkan library!); ") + how_to_install);
    get_ = reinterpret_cast<PFN_vkGetInstanceProcAddr>(symbol_of(library_, "vkGetInstanceProcAddr"));
    if (stands_between != nullptr) get_ = stands_between(get_);
}

Loader::~Loader() {
    close_library(library_);
}

}  // namespace vkattn::runtime
