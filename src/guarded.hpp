// The border of the C ABI, as both libraries have it: no exception passes it, and a Result becomes a status.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>

#include "result.hpp"

namespace vkattn::core {

inline void copy_text(char* to, size_t capacity, std::string_view text) {
    const size_t length = std::min(capacity - 1, text.size());
    std::memcpy(to, text.data(), length);
    to[length] = 0;
}

// Allocates nothing: it also reports that there is no memory.
inline VkattnStatus report(VkattnError* error, VkattnStatus status, std::string_view field,
                           std::string_view message, int32_t vk_result = 0) {
    if (error != nullptr) {
        error->status = status;
        error->vk_result = vk_result;
        copy_text(error->field, sizeof error->field, field);
        copy_text(error->message, sizeof error->message, message);
    }
    return status;
}

// Runs the body of an API function; whatever it throws becomes a status. Constructors have no Result to return, so they
// throw a Failure.
template <class Body>
VkattnStatus guarded(VkattnError* error, Body body) {
    if (error != nullptr) std::memset(error, 0, sizeof *error);
    try {
        const Result<bool> done = body();
        if (done) return VKATTN_OK;
        const Failure& f = done.failure();
        return report(error, f.status, f.field, f.message, f.vk_result);
    } catch (const Failure& f) {
        return report(error, f.status, f.field, f.message, f.vk_result);
    } catch (const std::bad_alloc&) {
        return report(error, VKATTN_OUT_OF_HOST_MEMORY, "", "out of host memory");
    } catch (const std::exception& e) {
        return report(error, VKATTN_INTERNAL_ERROR, "", e.what());
    } catch (...) {
        return report(error, VKATTN_INTERNAL_ERROR, "", "an unknown exception");
    }
}

}  // namespace vkattn::core
