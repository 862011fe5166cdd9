// This is how a context tells its application what it would do in silence: VkattnContextInfo::message.
#pragma once

#include <string>

#include "vkattn/vkattn.h"

namespace vkattn::core {

// Nobody calls it with a lock held, because the application may take its own.
struct Messages {
    void (*callback)(void* user, VkattnMessageLevel level, const char* text) = nullptr;
    void* user = nullptr;

    // text() makes the line, if somebody listens. A message for which there is no memory is lost, and so is what the
    // callback throws.
    template <class Text>
    void tell(VkattnMessageLevel level, const Text& text) const noexcept {
        if (callback == nullptr) return;
        try {
            const std::string line = text();
            callback(user, level, line.c_str());
        } catch (...) {
        }
    }
};

}  // namespace vkattn::core
