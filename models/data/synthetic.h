// The built-in data: a random language whose entropy is known, so that a loss curve has a floor to be read
// against.
#pragma once

#include <memory>

#include "models/data/data.h"

namespace precbench {

/// A first-order Markov chain over S = min(vocab, 256) words, which are S different tokens scattered over the
/// vocabulary. After word s come four words with probabilities 1/2, 1/4, 1/8, 1/8. A model that learns
/// nothing has a loss of ln(vocab), one that learns word frequencies ln(S), one that learns the bigrams the
/// entropy, 1.213 nats (less for S < 4, where successors coincide). vocab must be in [2, 2^31).
std::unique_ptr<DataSource> make_synthetic_data(std::uint64_t seed, std::int64_t vocab);

}  // namespace precbench
