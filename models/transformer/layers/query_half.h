// The rows of one half of a context rank's queries (sequence_part.h).
#pragma once

#include <cstdint>

#include "models/transformer/layers/step_context.h"

namespace precbench {

struct QueryHalf {
  const StepContext& step;
  AttentionShape shape;  ///< of any half
  int number;
  std::int64_t start;  ///< position of its first query

  QueryHalf(const StepContext& context, std::int64_t layer, int half)
      : step(context),
        shape(context.attention_shape_of(layer)),
        number(half),
        start(context.sequence.start(half)) {}

  Tensor rows_of(const Tensor& x) const { return x.slice_rows(number * shape.tokens(), shape.tokens()); }
  Tensor lse_of(const Tensor& lse) const {
    const std::int64_t size = shape.heads * shape.tokens();
    return lse.elements(number * size, size).reshape(shape.heads, shape.tokens());
  }
  /// Returns the shape of attention to whole sequences.
  AttentionShape placed() const {
    AttentionShape placed = shape;
    placed.offset = start;
    return placed;
  }
  DocumentMask documents() const { return step.documents_of(shape, number * shape.tokens(), shape.tokens()); }
};

}  // namespace precbench
