// When the load of an MoE block's experts counts as uneven. Predictions assume even load.
#pragma once

#include "results/record/record.h"

namespace precbench {

/// Share of the tokens of the busiest expert, over its share at even load, from which a load is uneven.
inline constexpr double kUnevenLoad = 2;

inline bool is_uneven(const ExpertLoad& load) { return load.max.value_or(0) >= kUnevenLoad; }

}  // namespace precbench
