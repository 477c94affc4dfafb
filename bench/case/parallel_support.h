// Which axes of parallelism run together.
#pragma once

#include <optional>
#include <string>

#include "bench/case/plan.h"

namespace precbench {

/// Returns why a plan's ranks cannot share its work as the case asks, with the flag to change; null if they
/// can.
std::optional<std::string> parallel_unsupported_reason(const Plan& plan);

}  // namespace precbench
