// Decides which linear layers of a case run with its recipe, and from which step on, and writes this into its
// record.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/case/case.h"
#include "bench/case/definition.h"
#include "models/config/block.h"

namespace precbench {

/// Returns the layers that the case converts to `recipe`: all except those that its --keep-bf16 or, if that
/// is not set, the recipe's own keep_bf16 keeps in BF16. May be none. Throws InvalidInput for a block that
/// the model does not have and for separate q, k and v with delayed scaling.
ConvertedLayers convert(const Case& c, const ModelConfig& model, const Recipe& recipe);

/// Fills in the recipes of a definition whose model is known and the layers that each converts, as set by the
/// case or else by the recipe. Throws InvalidInput that names the flag, also if a quantized recipe converts no layer, unless
/// `may_convert_none`.
void choose_layers(const Case& c, Definition& definition, bool may_convert_none);

/// Returns all linear layers of a block that a recipe can convert: q, k and v separately, then qkv and the
/// others.
std::vector<LinearSpec> convertible_linears(const ModelConfig& model, std::int64_t layer);

/// Returns the recipe with the layers under `blocks`, `linears` and `head`: part of a record's definition.
/// `linears` is there only if some linear layers of a block are converted and some are not.
nlohmann::ordered_json layers_record(const ConvertedLayers& layers);

}  // namespace precbench
