// Age of a model: tokens seen per parameter. A recipe's loss gap depends on it (arXiv 2411.04330), so every
// verdict states it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "results/record/record.h"

namespace precbench {

/// Returns the number of parameters of the record's model, including embeddings and all experts; null if the
/// record does not define the model.
std::optional<double> parameters_of(const Record& record);

/// Returns the number of parameters that a token passes through: all of a dense model, in a mixture of experts without
/// the experts that it is not routed to. Null as in parameters_of.
std::optional<double> active_parameters_of(const Record& record);

/// Returns the tokens per parameter after `steps` steps of a run whose initial weights had seen `before`
/// tokens; null if the record lacks the data.
std::optional<double> tokens_per_parameter(const Record& run, double steps, double before = 0);

/// Formats a ratio with two digits, three from 100 on: "0.73", "14", "14,900".
std::string ratio_words(double tokens_per_parameter);

/// Formats a range: "at 0.18 to 0.73 tokens per parameter". Unknown if empty or if any value is null: "at an
/// unknown number of tokens per parameter".
std::string age_words(const std::vector<std::optional<double>>& tokens_per_parameter);

}  // namespace precbench
