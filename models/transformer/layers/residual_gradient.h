// Gradient of the residual stream during backward: two buffers with the quantized copies that the blocks'
// down layers read, if it is their dY (BranchOutput::plain). Each block reads one and writes the other.
#pragma once

#include <cstdint>

#include "models/transformer/layers/step_context.h"

namespace precbench {

class ResidualGradient {
 public:
  /// Throws std::invalid_argument if quantized down layers have different recipes: all blocks share the
  /// copies' memory.
  explicit ResidualGradient(const StepContext& step);

  /// Allocates both buffers. `dx0` [stream_rows, width]: the one that ends up with the embedded tokens' gradient.
  void push(const Tensor& dx0);
  /// Returns the current gradient with the copies that block `layer` reads.
  QuantizedTensor current(std::int64_t layer) const { return slot_for(slot_, layer); }
  /// Returns the other buffer, to be written for the next block of backward, `layer` (-1: the embedding,
  /// which reads no copies).
  QuantizedTensor next(std::int64_t layer) const { return slot_for(1 - slot_, layer); }
  /// Makes the other buffer the current one.
  void flip() { slot_ = 1 - slot_; }

 private:
  QuantizedTensor slot_for(int slot, std::int64_t layer) const;
  /// Returns true if the block reads the columnwise copy. Routed experts make their own.
  bool reads_columnwise(std::int64_t layer) const;

  const StepContext& step_;
  QuantizedTensor slots_[2];
  int slot_ = 0;
};

}  // namespace precbench
