// These tests withdraw each word and each extension that src/vulkan reads of a device, alone, from a device that is
// made up and has everything. The caps that change have to be those that device_words.def names. So a test fails for a
// word that is read and is not in there, and for one in there that is ignored.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "vulkan/caps.hpp"
#include "vulkan/features.hpp"

using namespace vkattn::core;

namespace {

#define MATRICES "matrices_bfloat16 matrices_float16"
#define DOTS "dot_bfloat16 dot_float16"
#define MEMBER(...)
#define EXTENSION(name, caps)
#define FIELD(field)
#define STRUCT(name, type) {VK_STRUCTURE_TYPE_##type, sizeof(name)},
const std::map<VkStructureType, size_t> struct_sizes = {
#include "device_words.def"
};
namespace type_named {  // the type of a struct by its name
#undef STRUCT
#define STRUCT(name, type) constexpr VkStructureType name = VK_STRUCTURE_TYPE_##type;
#include "device_words.def"
#undef STRUCT
#define STRUCT(name, type)
}  // namespace type_named

// The caps that go with a member, and the bits of it that count; 0: any.
struct Member {
    std::string_view of;
    VkStructureType type;
    size_t offset, size;
    const char* caps;
    uint32_t bits = 0;
};
constexpr Member members[] = {
#undef MEMBER
#define MEMBER(of, member, ...) {#of, type_named::of, offsetof(of, member), sizeof(of::member), __VA_ARGS__},
#include "device_words.def"
#undef MEMBER
#define MEMBER(...)
};
struct Extension {
    const char *macro, *name, *caps;
};
constexpr Extension extensions[] = {
#undef EXTENSION
#define EXTENSION(name, caps) {#name "_EXTENSION_NAME", name##_EXTENSION_NAME, caps},
#include "device_words.def"
#undef EXTENSION
#define EXTENSION(name, caps)
};

// A word of a struct, whose bits `mask` the device answers with 0.
struct Word {
    VkStructureType type = VK_STRUCTURE_TYPE_MAX_ENUM;
    size_t offset = 0;
    uint32_t mask = UINT32_MAX;
};

// Vulkan's functions have no room for a pointer of ours.
struct MadeUp {
    static constexpr VkMemoryHeapFlags local = VK_MEMORY_HEAP_DEVICE_LOCAL_BIT;
    static inline Word withdrawn;
    static inline std::set<std::string> without;  // extensions

    static void fill(void* chain) {
        for (auto* s = static_cast<VkBaseOutStructure*>(chain); s != nullptr; s = s->pNext) {
            const auto known = struct_sizes.find(s->sType);
            CAPTURE(s->sType);
            REQUIRE_MESSAGE(known != struct_sizes.end(),
                            "device_words.def has no line of a struct that is asked for");
            auto* const bytes = reinterpret_cast<unsigned char*>(s);
            // It is true, many, a readable character, and has the flags of compute and of all subgroup operations.
            std::memset(bytes + sizeof *s, 0x3f, known->second - sizeof *s);
            if (s->sType == type_named::VkPhysicalDeviceProperties2)
                bytes[offsetof(VkPhysicalDeviceProperties2, properties.deviceName[255])] = 0;
            withdraw_from(s);
        }
    }
    static void withdraw_from(void* given) {
        auto* const s = static_cast<VkBaseOutStructure*>(given);
        if (s->sType != withdrawn.type) return;
        uint32_t word = 0;
        std::memcpy(&word, reinterpret_cast<char*>(s) + withdrawn.offset, sizeof word);
        // A size, type or scope of a matrix becomes another one; 0 would be float16.
        word = s->sType == type_named::VkCooperativeMatrixPropertiesKHR ? word + 256 : word & ~withdrawn.mask;
        std::memcpy(reinterpret_cast<char*>(s) + withdrawn.offset, &word, sizeof word);
    }
    static VkResult VKAPI_CALL enumerate(VkPhysicalDevice, const char*, uint32_t* count,
                                         VkExtensionProperties* all) {
        *count = 0;
        for (const Extension& e : extensions) {
            if (without.contains(e.name)) continue;
            if (all != nullptr) std::strcpy(all[*count].extensionName, e.name);
            ++*count;
        }
        return VK_SUCCESS;
    }
    static VkResult VKAPI_CALL shapes(VkPhysicalDevice, uint32_t* count,
                                      VkCooperativeMatrixPropertiesKHR* all) {
        *count = 3;
        for (uint32_t i = 0; all != nullptr && i < *count; i++) {
            VkCooperativeMatrixPropertiesKHR& s = all[i];
            s.MSize = s.NSize = s.KSize = 16;
            s.AType = s.BType = i == 0 ? VK_COMPONENT_TYPE_BFLOAT16_KHR : VK_COMPONENT_TYPE_FLOAT16_KHR;
            s.CType = s.ResultType = i == 2 ? VK_COMPONENT_TYPE_FLOAT16_KHR : VK_COMPONENT_TYPE_FLOAT32_KHR;
            s.scope = VK_SCOPE_SUBGROUP_KHR;
            withdraw_from(&s);
        }
        return VK_SUCCESS;
    }
    static InstanceFunctions functions() {
        InstanceFunctions vk;
        vk.vkGetPhysicalDeviceFeatures2 = [](VkPhysicalDevice, VkPhysicalDeviceFeatures2* chain) {
            fill(chain);
        };
        vk.vkGetPhysicalDeviceProperties2 = [](VkPhysicalDevice, VkPhysicalDeviceProperties2* chain) {
            fill(chain);
        };
        vk.vkGetPhysicalDeviceMemoryProperties = [](VkPhysicalDevice, VkPhysicalDeviceMemoryProperties* to) {
            to->memoryHeapCount = 4;
            const VkMemoryHeap heaps[] = {{5, 0}, {2, local}, {4, local}, {3, local}};
            std::ranges::copy(heaps, to->memoryHeaps);
        };
        vk.vkEnumerateDeviceExtensionProperties = enumerate;
        vk.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR = shapes;
        return vk;
    }
};

// Each of the caps as text, by its name.
std::map<std::string, std::string> named(const DeviceCaps& caps) {
    std::map<std::string, std::string> all = {
#undef FIELD
#define FIELD(field) {#field, fmt::format("{}", caps.field)},
#include "device_words.def"
        {"type", fmt::format("{}", static_cast<uint32_t>(caps.type))}};
    for (const auto& s : caps.matrices)
        all[s.dtype == VKATTN_DTYPE_FLOAT16 ? "matrices_float16" : "matrices_bfloat16"] +=
            fmt::format("{}x{}x{} {} ", s.m, s.n, s.k, s.rounded);
    return all;
}

// The names of the caps that differ.
std::set<std::string> difference(const DeviceCaps& before, const DeviceCaps& after) {
    std::set<std::string> changed;
    const auto old = named(before), made = named(after);
    for (const auto* all : {&old, &made})
        for (const auto& [name, text] : *all)
            if (!old.contains(name) || !made.contains(name) || old.at(name) != made.at(name))
                changed.insert(name);
    CHECK_EQ(changed.empty(), before == after);  // each of the caps has a name here
    return changed;
}
std::string text_of(const std::set<std::string>& names) {
    return fmt::format("{}", fmt::join(names, " "));
}

DeviceCaps supported() {
    return query_supported_caps(MadeUp::functions(), VK_NULL_HANDLE, VK_API_VERSION_1_3);
}

// Calls `visit` with each feature that a chain has set.
template <class Visit>
void for_each_feature(const VkPhysicalDeviceFeatures2& chain, Visit visit) {
    for (auto* s = reinterpret_cast<const VkBaseOutStructure*>(&chain); s != nullptr; s = s->pNext) {
        auto* const words = const_cast<VkBool32*>(reinterpret_cast<const VkBool32*>(s));
        for (size_t i = sizeof *s / sizeof *words; i < struct_sizes.at(s->sType) / sizeof *words; i++)
            if (words[i] != VK_FALSE) visit(words[i]);
    }
}

// How many features are asked for on a device that lacks a word.
int count_asked(const Word& word) {
    MadeUp::withdrawn = word;
    const Features features(MadeUp::functions(), VK_NULL_HANDLE);
    MadeUp::withdrawn = {};
    int count = 0;
    for_each_feature(features.chain(), [&](VkBool32) { count++; });
    return count;
}

// What changes when the device lacks a word or an extension. Devices tell their multiprocessors by one of three
// extensions, so each of them is tried without those that are asked first.
std::string effect_of(const Word& word, const std::string& extension = "") {
    std::set<std::string> all;
    const std::set<std::string> devices[] = {
        {},
        {VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME},
        {VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME, VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME}};
    for (const auto& without : devices) {
        MadeUp::without = without;
        const DeviceCaps before = supported();
        MadeUp::withdrawn = word;
        MadeUp::without.insert(extension);
        all.merge(difference(before, supported()));
        MadeUp::withdrawn = {};
        MadeUp::without = {};
    }
    return text_of(all);
}

}  // namespace

TEST_CASE(
    "device: a word of its features and properties that is 0 changes what it should, and no other is read") {
    for (const auto& [type, size] : struct_sizes)
        for (size_t at = sizeof(VkBaseOutStructure); at + sizeof(uint32_t) <= size; at += sizeof(uint32_t)) {
            const auto member = std::ranges::find_if(members, [&](const Member& m) {
                return m.type == type && m.offset <= at && at < m.offset + m.size;
            });
            const bool is_read = member != std::end(members);
            CAPTURE(type);
            CAPTURE(at);
            CHECK_EQ(effect_of({type, at}), std::string(is_read ? member->caps : ""));
            for (uint32_t bit = 1; is_read && member->bits != 0 && bit != 0; bit *= 2)
                CHECK_EQ(effect_of({type, at, bit}),
                         std::string((member->bits & bit) != 0 ? member->caps : ""));
        }
}

TEST_CASE(
    "device: an extension that it lacks takes away what it should, and each that is asked for is known") {
    for (const Extension& e : extensions) {
        CAPTURE(e.name);
        CHECK_EQ(effect_of({}, e.name), std::string(e.caps));
    }
    CHECK_EQ(supported().device_local_bytes, 4);  // of its largest heap of that memory
    // The made-up device has only those of the list, so the sources tell which are asked for.
    for (const char* source : {"caps.cpp", "features.cpp"}) {
        std::ifstream file(std::string(VKATTN_TESTS_DIR "/../src/vulkan/") + source);
        REQUIRE(file);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        const std::regex macro("VK_[A-Z0-9_]+_EXTENSION_NAME");
        for (std::sregex_iterator found(text.begin(), text.end(), macro), end; found != end; ++found)
            CHECK_MESSAGE(std::ranges::count(extensions, found->str(), &Extension::macro) == 1, found->str());
    }
}

TEST_CASE(
    "device: a feature that the caller leaves out is done without, in its own struct and in a version's") {
    std::multiset<std::string> expected;
    for (const Member& m : members)
        if (m.of.find("Features") != m.of.npos) expected.insert(m.caps);
    // Without the device's scope, to enable the memory model would make atomics of other kernels invalid.
    using Model = VkPhysicalDeviceVulkanMemoryModelFeatures;
    const Word scope{type_named::VkPhysicalDeviceVulkanMemoryModelFeatures,
                     offsetof(Model, vulkanMemoryModelDeviceScope)};
    CHECK_EQ(count_asked(scope), count_asked({}) - 2);
    Features features(MadeUp::functions(), VK_NULL_HANDLE);
    VkPhysicalDeviceVulkan13Features v13{};
    VkPhysicalDeviceVulkan12Features v12{};
    VkPhysicalDeviceVulkan11Features v11{};
    VkPhysicalDeviceFeatures2 root{};
    const auto chained = [](auto& made, VkStructureType type, void* next) {
        made.sType = type;
        made.pNext = next;
    };
    chained(v13, type_named::VkPhysicalDeviceVulkan13Features, nullptr);
    chained(v12, type_named::VkPhysicalDeviceVulkan12Features, &v13);
    chained(v11, type_named::VkPhysicalDeviceVulkan11Features, &v12);
    chained(root, type_named::VkPhysicalDeviceFeatures2, &v11);
    features.merge_into(reinterpret_cast<VkBaseOutStructure&>(root));
    for (const VkPhysicalDeviceFeatures2* chain :
         {&features.chain(), static_cast<const VkPhysicalDeviceFeatures2*>(&root)}) {
        const auto caps = [&] {
            return query_caps(MadeUp::functions(), VK_NULL_HANDLE, VK_API_VERSION_1_3, chain);
        };
        CHECK(supported() == caps());
        std::multiset<std::string> effects;
        for_each_feature(*chain, [&](VkBool32& feature) {
            feature = VK_FALSE;
            effects.insert(text_of(difference(supported(), caps())));
            feature = VK_TRUE;
        });
        CHECK(effects == expected);
    }
}
