// Mean length of a token in bytes of text, which turns nats per token into nats per byte.
#pragma once

#include <optional>

#include "models/data/data.h"

namespace precbench {

/// Returns the bytes of text per token of a corpus, on average: 1 for text, whose bytes are the tokens; for a file of
/// tokens or documents what the manifest beside it states (tools/data/tokenize_text.py: PREFIX.json beside PREFIX.u16
/// and PREFIX.eval.u16). Null for synthetic data, for folders of tokens, without a manifest, and if the manifest
/// describes another file or another number of tokens.
std::optional<double> bytes_per_token(const DataOptions& options);

}  // namespace precbench
