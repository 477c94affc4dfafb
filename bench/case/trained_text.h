// Text and trained weights: text is read as bytes, which mean nothing to weights that were trained on a tokenizer's
// ids.
#pragma once

#include <memory>
#include <string>

#include "bench/case/case.h"
#include "models/config/config.h"
#include "models/data/data.h"

namespace precbench {

/// Open the training data and the held-out text of a case. Throw InvalidInput like open_data(), and for text that
/// text_refusal() refuses.
std::unique_ptr<DataSource> open_training_data(const Case& c, const ModelConfig& model);
std::unique_ptr<DataSource> open_held_out(const Case& c, const ModelConfig& model);

/// Returns why the text at `path`, the value of `flag` (--data or --eval-data), must not be read by this case, with
/// the command that makes tokens of it. Empty if it may be: the weights are random, the vocabulary has one token per
/// byte, or precbench itself trained the weights on text (tokens_of_saved()).
std::string text_refusal(const Case& c, const ModelConfig& model, const std::string& flag,
                         const std::string& path);

/// Returns the meaning of token ids in the weights that a case saves, given the kind of its data
/// (DataDefinition::kind).
const char* tokens_of_saved(const Case& c, const std::string& data_kind);

/// Meanings of token ids in a file of weights, under "tokens" in its metadata.
inline constexpr const char* kTokensKey = "tokens";
inline constexpr const char* kTokensAreBytes = "bytes";
inline constexpr const char* kTokensAreIds = "ids";

}  // namespace precbench
