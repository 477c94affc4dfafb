// Speeds of other training software in the table of advise: ours times a factor.
#pragma once

#include <string>

#include "tools/advise/advise_host.h"
#include "tools/advise/speed_rows.h"

namespace precbench {

/// Returns the table with the speeds and speed-ups of a stack, in rows that keep ours beside them. A stack's energy is not
/// known and left out; notes say what no comparison covers. Throws InvalidInput if no factor is known on the table's GPU.
SpeedTable in_stack(const SpeedTable& table, const std::string& stack, const AdviseHost& host);

}  // namespace precbench
