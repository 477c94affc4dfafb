// Which linear layers of a case run by its recipe, by which from which step on, and how its record says so.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/case/case.h"
#include "bench/case/definition.h"

namespace precbench {

/// Returns the layers that the case converts to `recipe`: all but those that its --keep-bf16 keeps in BF16 or, where the case
/// does not set it, the recipe's own keep_bf16. They may be none. Throws InvalidInput for a block that the model does not have
/// and for q, k and v chosen apart with delayed scaling.
ConvertedLayers convert(const Case& c, const ModelConfig& model, const Recipe& recipe);

/// Fills in the recipes of a definition whose model is known, and the layers that each converts: what the case says, and
/// where it says nothing what the recipe says. Throws InvalidInput that names the flag.
void choose_layers(const Case& c, Definition& definition);

/// The row, and under `blocks`, `linears` and `head` the layers: part of a record's definition. `linears` stands there
/// only where some linear layers of a block are converted and some are not.
nlohmann::ordered_json layers_record(const ConvertedLayers& layers);

}  // namespace precbench
