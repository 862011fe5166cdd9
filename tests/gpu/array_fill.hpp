// The contents of a case's arrays that its line does not list.
#pragma once

#include "cases.hpp"

namespace vkattn::test {

// Sets blocks of every kind, half of them hidden.
void fill_map(Case& c);
// Gives key and value scales of this kind, where they are single bytes. Those of keys behind a batch's length are NaN.
void fill_scales(Case& c, VkattnScales kind);

}  // namespace vkattn::test
