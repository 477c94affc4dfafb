// Order of queries' and keys' elements in checkpoints.
//
// Here RoPE rotates element i of a head with element i + D/2, and a model that rotates only `rotary_dim` elements
// has the others in the later pairs, whose angle is 0 (rope_table.h). Checkpoints have rotated elements first, in two
// halves (Llama) or interleaved (GLM), and then the others. Scores of attention and QK-norms do not
// depend on the order as long as queries and keys have the same, so it is changed where weights are read and
// written, and no kernel knows of it.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/config/config.h"

namespace precbench {

/// Order of the elements of each head of a parameter in a checkpoint.
struct StoredOrder {
  std::int64_t head_dim = 0;    ///< 0: as here, whatever the rest says
  std::int64_t rotary_dim = 0;  ///< elements that rotate, of a head
  RopePairs pairs = RopePairs::halves;

  /// Returns true if a checkpoint has the order used here.
  bool plain() const { return head_dim == 0 || (pairs == RopePairs::halves && rotary_dim == head_dim); }
  /// Returns the index in a checkpoint of an element of all heads, or of the gain that one QK-norm has for it.
  std::int64_t stored(std::int64_t element) const;
};

/// Returns the order of a parameter under its checkpoint name: that of weights, biases and QK-norms of queries and keys
/// in the model's own, plain for all others.
StoredOrder stored_order(const ModelConfig& config, std::string_view parameter);

}  // namespace precbench
