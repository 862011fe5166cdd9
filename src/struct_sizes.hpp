// This header reads callers' structs by their sizes. Public structs grow at their end only, so a caller that was
// compiled with an older header has shorter ones; the fields that these lack keep their defaults. Version 0.1 is the
// oldest one that is read.
//
// A new field must not lie in the padding at the end of version 0.1's struct: the size would not tell whether the
// caller set it. VkattnError has no size, so it cannot grow.
#pragma once

#include <cstddef>
#include <cstring>

#include <fmt/format.h>

#include "result.hpp"
#include "vkattn/types.h"

namespace vkattn::core {

// This is the extent of a struct in version 0.1 where pointers have 8 bytes.
struct FirstVersion {
    size_t size, last_offset;  // bytes; last_offset is that of its last field
};
namespace version_0_1 {
inline constexpr FirstVersion problem{224, 216}, options{56, 48}, combine{104, 96}, backward{112, 88},
    scratch{24, 16}, plan_info{104, 96}, context_info{72, 64}, forward_args{96, 88}, backward_args{144, 136},
    combine_args{40, 32};
}

// Each public struct has a specialization. Those of vkattn.h stand in vulkan/api.cpp.
template <class T>
inline constexpr FirstVersion first_version{};

#define VKATTN_FIRST_VERSION(type, last_field, first)                                                  \
    template <>                                                                                        \
    inline constexpr FirstVersion first_version<type> = first;                                         \
    static_assert(sizeof(void*) != 8 ||                                                                \
                      (sizeof(type) >= first.size && offsetof(type, last_field) == first.last_offset), \
                  #type " no longer begins with the fields of version 0.1");
VKATTN_FIRST_VERSION(VkattnProblem, alignment_bytes, version_0_1::problem)
VKATTN_FIRST_VERSION(VkattnOptions, precision, version_0_1::options)
VKATTN_FIRST_VERSION(VkattnCombine, alignment_bytes, version_0_1::combine)
VKATTN_FIRST_VERSION(VkattnBackward, dvalue_strides, version_0_1::backward)
VKATTN_FIRST_VERSION(VkattnScratch, alignment_bytes, version_0_1::scratch)
VKATTN_FIRST_VERSION(VkattnPlanInfo, max_segment_flops, version_0_1::plan_info)

// Returns the least size of a struct that is read. Where pointers are smaller than 8 bytes, only today's size is.
template <class T>
constexpr size_t least_size() {
    static_assert(first_version<T>.size != 0, "the first version of this struct is not known");
    return sizeof(void*) == 8 ? first_version<T>.size : sizeof(T);
}

// Returns the caller's struct, with the defaults of the fields that it lacks. `name` is what messages call it.
template <class T>
Result<T> read_struct(const char* name, const T* given, T defaults) {
    if (given == nullptr) return invalid(name, "is null");
    if (given->struct_size < least_size<T>() || given->struct_size > sizeof(T))
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
