// Words of --recompute: none, selective, block, block:K, or parts of a block joined by "+".
#pragma once

#include <string>

#include "models/transformer/layers/transformer_options.h"

namespace precbench {

/// Throws InvalidInput that names the flag.
Recompute parse_recompute(const std::string& text);

/// Returns the words as records have them, with the parts in alphabetical order: "attention+norm".
std::string recompute_text(const Recompute& recompute);

}  // namespace precbench
