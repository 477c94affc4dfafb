// What the backward kernels of attention for Hopper read and write, and what is made ready for them.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace precbench::hopper {

/// Rows of the row values (below) are padded to whole blocks of the largest kernel.
constexpr int kValuePadding = 128;

/// Place of a query's lse among the row values of its head; its delta is 64 further. In each 64 queries, what a thread of a product needs whose columns are
/// queries (2 of every 8) is together.
__host__ __device__ constexpr int value_place(int query) {
  return query / 64 * 128 + query % 8 / 2 * 16 + query % 64 / 8 * 2 + query % 2;
}

struct BackwardProblem {
  int queries, keys, offset;  ///< of a sequence; query t sees the keys up to t + offset
  int heads, kv_heads;
  int parts;             ///< of a group of heads whose dk and dv are summed apart; 1: none are
  int tile_rows, tiles;  ///< tiles of a head, and all
  int of_row;            ///< key side: tiles side by side
  int group;             ///< query heads of a kv head
  int heads_of_part;
  float scale;       ///< of the scores
  float scale_log2;  ///< the same for powers of two
  /// [sequence][head][64 queries][2][64]: lse for powers of two, infinite where there is no query, then delta, each at
  /// its value_place
  const float* values;
  int padded;   ///< queries of a sequence in `values`
  int of_head;  ///< 64s of them
  /// Of one pass: [sequence][head][64 queries][shares], the accumulators of a share of dq together; null: two passes.
  float* dq_sums;
  float* pieces;  ///< with more than one part: [part][dk, dv][sequence][keys][kv_heads][head width]
};

/// In boxes of a warpgroup's rows (own) or of a block (met).
struct BackwardMaps {
  CUtensorMap own[2], met[2];  ///< query side: q, dout and k, v; key side: k, v and q, dout
  CUtensorMap out[2];          ///< query side: dq; key side: dk, dv
};

}  // namespace precbench::hopper
