// Of a problem or a combine: the field that resolve complains of.
#pragma once

#include <functional>
#include <string>

#include "problem.hpp"

namespace vkattn::test {

inline constexpr int64_t two_31 = int64_t{1} << 31;

// "" if nothing is wrong; "?..." if the complaint is not of the form that is promised.
template <class T>
std::string field_of(const core::Result<T>& result) {
    if (result) return "";
    const core::Failure& f = result.failure();
    if (f.status != VKATTN_INVALID_ARGUMENT) return "?status " + std::to_string(f.status);
    if (f.message.empty() || f.message.find('\n') != std::string::npos) return "?message " + f.message;
    if (f.field.size() >= sizeof(VkattnError::field) || f.message.size() >= sizeof(VkattnError::message))
        return "?too long for VkattnError";
    return f.field;
}

inline std::string bad_field(const VkattnProblem& given) {
    return field_of(core::resolve(given));
}

inline std::string bad_field(const VkattnCombine& given) {
    return field_of(core::resolve(given));
}

// Legal in every field, and every field that has a limit in mid-range.
inline VkattnProblem legal() {
    VkattnProblem p = core::default_problem();
    p.batch = 2;
    p.num_heads_q = 6;
    p.num_heads_kv = 3;
    p.seqlen_q = 5;
    p.seqlen_kv = 9;
    p.head_dim_qk = 8;
    p.head_dim_v = 12;
    return p;
}

inline VkattnProblem with_seqlens(uint32_t q, uint32_t kv) {
    VkattnProblem p = core::default_problem();
    p.head_dim_qk = p.head_dim_v = 1;
    p.seqlen_q = q;
    p.seqlen_kv = kv;
    return p;
}

using Change = std::function<void(VkattnProblem&)>;

inline std::string bad_field(const Change& change) {
    VkattnProblem p = legal();
    change(p);
    return bad_field(p);
}

}  // namespace vkattn::test
