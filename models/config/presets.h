// Internal to models/config: parts of the table of presets.
#pragma once

#include <vector>

#include "models/config/config.h"

namespace precbench {

/// Returns the presets of families with LayerNorm (presets_classic.cpp).
std::vector<ModelConfig> classic_presets();

}  // namespace precbench
