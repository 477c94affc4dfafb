// Internal to models/config: parts of the table of presets.
#pragma once

#include <vector>

#include "models/config/config.h"

namespace precbench {

/// Returns the presets of families with LayerNorm (presets_classic.cpp).
std::vector<ModelConfig> classic_presets();
/// Returns the presets with latent attention (presets_latent.cpp).
std::vector<ModelConfig> latent_presets();

}  // namespace precbench
