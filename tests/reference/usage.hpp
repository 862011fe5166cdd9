#pragma once

#include <stdexcept>

namespace reference {

// Bad usage, files that do not fit together included: exit code 2.
struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace reference
