// FNV-1a: against accidents, not against intent. It differs where any one byte does.
#pragma once

#include <cstdint>
#include <string_view>

namespace vkattn::core {

inline uint64_t checksum_of(std::string_view data) {
    uint64_t hash = 14695981039346656037u;
    for (const char byte : data) hash = (hash ^ static_cast<uint8_t>(byte)) * 1099511628211u;
    return hash;
}

}  // namespace vkattn::core
