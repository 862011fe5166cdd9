// The probe of the matrix units: its plan, and what its results mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "plan/plan.hpp"

namespace vkattn::core {

// Only the device itself can tell where its matrix units keep their elements. The plan has a pipeline and a dispatch
// for each usable shape, each with its own results; Region::out is where all of them go.
constexpr uint64_t probe_bytes = uint64_t{3} * PROBE_WORDS * 4;  // of a shape
Plan probe_plan(const DeviceCaps& caps);
uint64_t probe_size(const DeviceCaps& caps);
// Fills in caps.matrices what the results of the probe's pipelines say.
void note_probe(DeviceCaps& caps, const std::byte* results);
// True if the results are of some shape. Those of a probe that was not executed are of none.
bool has_probe_results(const DeviceCaps& caps, const std::byte* results);
// probe_text() returns the findings of a probe as text, with which contexts of later starts begin (kept_text.hpp).
// note_probe_text() returns false, and changes nothing, if the text is not of this device with the same features.
std::string probe_text(const DeviceCaps& caps, std::string_view version);
bool note_probe_text(DeviceCaps& caps, std::string_view text, std::string_view version);

}  // namespace vkattn::core
