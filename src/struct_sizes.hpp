// This header reads callers' structs by their sizes. Public structs grow at their end only, so a caller that was
// compiled with an older header has shorter ones; the fields that these lack keep their defaults. Version 0.1 is the
// oldest one that is read.
//
// A new field must not lie in the padding at the end of version 0.1's struct: the size would not tell whether the
// caller set it. VKATTN_FIRST_VERSION notices it by the number of fields, VKATTN_LATER_VERSIONS by their offsets.
// VkattnError has no size, so it cannot grow.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "result.hpp"
#include "vkattn/types.h"

namespace vkattn::core {

// This is the extent of a struct in version 0.1 where pointers have 8 bytes.
struct FirstVersion {
    size_t size, last_offset;  // bytes; last_offset is that of its last field
    size_t num_fields;  // as count_fields has it; 0: not counted, because there is no padding at the end
};
namespace version_0_1 {
inline constexpr FirstVersion problem{224, 216, 28}, options{56, 48, 8}, combine{104, 96, 12},
    backward{112, 88, 7}, scratch{24, 16, 3}, plan_info{104, 96, 70}, context_info{72, 64, 10},
    module{40, 32, 5}, forward_args{96, 88, 12}, backward_args{144, 136, 18}, combine_args{40, 32, 5};
}

// Each public struct has a specialization.
template <class T>
inline constexpr FirstVersion first_version{};

// The sizes that a struct had in versions after 0.1, in order, today's included. A struct that has grown has a
// specialization, which VKATTN_LATER_VERSIONS makes.
template <class T>
inline constexpr std::array<size_t, 0> later_sizes{};

// This initializes a field of any type.
struct AnyField {
    template <class Field>
    operator Field() const;
};
// Counts the fields of a struct, elements of an array one by one.
template <class T, class... Fields>
constexpr size_t count_fields() {
    if constexpr (requires { T{std::declval<Fields>()..., AnyField{}}; })
        return count_fields<T, Fields..., AnyField>();
    else
        return sizeof...(Fields);
}

// False if a struct has other fields than version 0.1 had, and no list of its sizes.
template <class T>
constexpr bool grows_in_the_open() {
    constexpr FirstVersion first = first_version<T>;
    if constexpr (first.num_fields == 0)
        return later_sizes<T>.size() != 0 || sizeof(T) == first.size;
    else
        return later_sizes<T>.size() != 0 ||
               (sizeof(T) == first.size && count_fields<T>() == first.num_fields);
}

#define VKATTN_FIRST_VERSION(type, last_field, first)                                                  \
    template <>                                                                                        \
    inline constexpr FirstVersion first_version<type> = first;                                         \
    static_assert(sizeof(void*) != 8 ||                                                                \
                      (sizeof(type) >= first.size && offsetof(type, last_field) == first.last_offset), \
                  #type " no longer begins with the fields of version 0.1");

// Says that a struct has grown: the first of its new fields, and its size in each version after 0.1.
#define VKATTN_LATER_VERSIONS(type, first_new_field, ...)                                               \
    template <>                                                                                         \
    inline constexpr auto later_sizes<type> = std::to_array<size_t>({__VA_ARGS__});                     \
    static_assert(sizeof(void*) != 8 || (offsetof(type, first_new_field) >= first_version<type>.size && \
                                         later_sizes<type>.back() == sizeof(type)),                     \
                  #type " has a new field in the padding of version 0.1, or a size that is not listed");
VKATTN_FIRST_VERSION(VkattnProblem, alignment_bytes, version_0_1::problem)
VKATTN_LATER_VERSIONS(VkattnProblem, mask_strides, 248, 256, 264, 280, 304, 312)
VKATTN_FIRST_VERSION(VkattnOptions, precision, version_0_1::options)
VKATTN_LATER_VERSIONS(VkattnOptions, variant, 64)
VKATTN_FIRST_VERSION(VkattnCombine, alignment_bytes, version_0_1::combine)
VKATTN_FIRST_VERSION(VkattnBackward, dvalue_strides, version_0_1::backward)
VKATTN_LATER_VERSIONS(VkattnBackward, dsinks, 120)
VKATTN_FIRST_VERSION(VkattnScratch, alignment_bytes, version_0_1::scratch)
VKATTN_FIRST_VERSION(VkattnPlanInfo, max_segment_flops, version_0_1::plan_info)
#ifdef VKATTN_H  // the planner does not see these structs, which need Vulkan
VKATTN_FIRST_VERSION(VkattnContextInfo, pipeline_cache, version_0_1::context_info)
VKATTN_LATER_VERSIONS(VkattnContextInfo, probe_results, 88, 96, 120)
VKATTN_FIRST_VERSION(VkattnModule, code_bytes, version_0_1::module)
VKATTN_FIRST_VERSION(VkattnForwardArgs, scratch_address, version_0_1::forward_args)
VKATTN_LATER_VERSIONS(VkattnForwardArgs, scratch_bytes, 104, 112, 120, 128, 144)
VKATTN_FIRST_VERSION(VkattnBackwardArgs, scratch_address, version_0_1::backward_args)
VKATTN_LATER_VERSIONS(VkattnBackwardArgs, scratch_bytes, 152, 160, 176, 184)
VKATTN_FIRST_VERSION(VkattnCombineArgs, lse, version_0_1::combine_args)
VKATTN_LATER_VERSIONS(VkattnCombineArgs, sinks, 48)
#endif

// True if a version of the struct has this size. A size that ends inside a field is none.
template <class T>
constexpr bool is_size_of(size_t size) {
    static_assert(first_version<T>.size != 0, "the first version of this struct is not known");
    if (size == sizeof(T)) return true;  // where pointers are smaller than 8 bytes, only today's is read
    return sizeof(void*) == 8 &&
           (size == first_version<T>.size || std::ranges::count(later_sizes<T>, size) != 0);
}

// Returns the caller's struct, with the defaults of the fields that it lacks. `name` is what messages call it.
template <class T>
Result<T> read_struct(const char* name, const T* given, T defaults) {
    if (given == nullptr) return invalid(name, "is null");
    static_assert(sizeof(void*) != 8 || grows_in_the_open<T>(), "VKATTN_LATER_VERSIONS lists what has grown");
    if (!is_size_of<T>(given->struct_size))
        return invalid(fmt::format("{}.struct_size", name),
                       fmt::format("{} is no size of this struct ({}): call its init function",
                                   given->struct_size, sizeof(T)));
    std::memcpy(&defaults, given, given->struct_size);
    return defaults;
}

// Sets a caller's struct to its defaults, as far as it goes.
template <class T>
void init_struct(T* object, size_t struct_size, T defaults) {
    if (object == nullptr) return;
    defaults.struct_size = struct_size;
    std::memcpy(object, &defaults, struct_size < sizeof defaults ? struct_size : sizeof defaults);
}

}  // namespace vkattn::core
