// A value, or why there is none. The library's inner error channel; the C ABI turns it into a VkattnError.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "vkattn/types.h"

namespace vkattn::core {

struct Failure {
    VkattnStatus status = VKATTN_INTERNAL_ERROR;
    std::string field;    // the argument at fault, "" where none is
    std::string message;  // one line
    int32_t vk_result = 0;
    // The plan's pipeline that could not be built, where that is what failed.
    std::optional<size_t> pipeline = std::nullopt;
};

// The compiler refuses to drop one, because a failure that nobody looks at is lost.
template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : state_(std::move(value)) {}
    Result(Failure failure) : state_(std::move(failure)) {}

    explicit operator bool() const { return state_.index() == 0; }
    T& operator*() { return std::get<0>(state_); }
    const T& operator*() const { return std::get<0>(state_); }
    T* operator->() { return &std::get<0>(state_); }
    const T* operator->() const { return &std::get<0>(state_); }
    const Failure& failure() const { return std::get<1>(state_); }

  private:
    std::variant<T, Failure> state_;
};

// Text of a caller's, fit for a message: it is short, and has one line.
inline std::string excerpt(std::string_view text) {
    constexpr size_t most = 40;
    std::string result(text.substr(0, most));
    for (char& c : result)
        if (c < ' ' || c > '~') c = '?';
    return text.size() > most ? result + "..." : result;
}

inline Failure invalid(std::string field, std::string message) {
    return {VKATTN_INVALID_ARGUMENT, std::move(field), std::move(message)};
}

inline Failure unsupported(std::string field, std::string message) {
    return {VKATTN_UNSUPPORTED, std::move(field), std::move(message)};
}

}  // namespace vkattn::core
