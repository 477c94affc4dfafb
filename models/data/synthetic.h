// The built-in data: a random language of known entropy, the lowest reachable loss.
#pragma once

#include <memory>

#include "models/data/data.h"

namespace precbench {

/// Returns a first-order Markov chain over S = min(vocab, 256) words, which are S different tokens scattered
/// over the vocabulary. Each word has four successors with probabilities 1/2, 1/4, 1/8, 1/8. The loss is
/// ln(vocab) for a model that learns nothing, ln(S) with word frequencies, and the entropy, 1.213 nats, with
/// bigrams (less for S < 4, where successors coincide). vocab must be in [2, 2^31).
std::unique_ptr<DataSource> make_synthetic_data(std::uint64_t seed, std::int64_t vocab);

}  // namespace precbench
