// The promises about running, which hold for every plan: the same bits every time, wherever and whenever it runs, next
// to whatever else. The GPU tests and `vkattn conformance` run the same ones, over the cases of
// tests/cases/behaviour.txt.
#pragma once

#include <span>
#include <string_view>

#include "job.hpp"

namespace vkattn::test {

struct Behaviour {
    const char* name;     // of the section that has its cases; behind "backward " that of its backward's
    const char* promise;  // a sentence
    std::string (*broken)(Device& device, const AnyJob& job);  // "" = the promise was kept
};
std::span<const Behaviour> behaviours();
// By the name of a section. Null if there is none.
const Behaviour* behaviour_named(std::string_view section);
bool is_backward(std::string_view section);

Report run_behaviour(Device& device, VkattnContext* context, const Behaviour& behaviour, const Case& c,
                     bool backward);

}  // namespace vkattn::test
