// How far a model has been trained: the tokens that it has seen for each of its parameters. What a recipe costs depends on
// it (arXiv 2411.04330), so no verdict is stated without it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "results/record.h"

namespace precbench {

/// Returns the number of parameters of the record's model, embeddings included and all experts counted; null where the record
/// does not define the model.
std::optional<double> parameters_of(const Record& record);

/// Returns the tokens per parameter that a run has seen after `steps` of its own steps, with `before` tokens seen by its first
/// weights; null where the record does not say.
std::optional<double> tokens_per_parameter(const Record& run, double steps, double before = 0);

/// "0.73", "14", "14,900": two digits, three from 100 on.
std::string ratio_words(double tokens_per_parameter);

/// "at 0.18 to 0.73 tokens per parameter"; "at an unknown number of tokens per parameter" where one is null or none is given.
std::string age_words(const std::vector<std::optional<double>>& tokens_per_parameter);

}  // namespace precbench
