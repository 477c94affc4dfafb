// Cases that train adapters (--lora-rank) and are not supported.
#pragma once

#include <optional>
#include <string>

#include "bench/case/plan.h"

namespace precbench {

/// Returns why a plan's adapters are not supported; null if they are, or if it has none.
std::optional<std::string> lora_unsupported_reason(const Plan& plan);

}  // namespace precbench
