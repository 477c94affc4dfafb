// Arguments of the Hopper attention backward kernels, and their prepared inputs.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace precbench::hopper {

/// Rows of the row values (below) are padded to whole blocks of the largest kernel.
constexpr int kValuePadding = 128;

/// Returns the index of a query's lse in its head's row values; its delta is 64 further. Within each 64
/// queries, the values are ordered so that those that a thread needs when queries are columns (2 of every 8)
/// are adjacent.
__host__ __device__ constexpr int row_value_index(int query) {
  return query / 64 * 128 + query % 8 / 2 * 16 + query % 64 / 8 * 2 + query % 2;
}

struct BackwardProblem {
  int queries, keys, offset;  ///< per sequence; query t sees keys up to t + offset
  int heads, kv_heads;
  int parts;             ///< of a head group, with dk and dv summed separately; 1: not split
  int tile_rows, tiles;  ///< tiles per head, and in total
  int of_row;            ///< dk/dv kernel: tiles side by side
  int group;             ///< query heads per KV head
  int heads_of_part;
  float scale;       ///< of the scores
  float scale_log2;  ///< the same for powers of two
  /// [sequence][head][64 queries][2][64]: lse for powers of two, infinite for missing queries, then delta,
  /// each at its row_value_index
  const float* values;
  int padded;   ///< queries per sequence in `values`
  int of_head;  ///< blocks of 64 queries per head
  /// One-pass kernel: [sequence][head][64 queries][shares], a share's accumulators of dq together; null: two
  /// passes.
  float* dq_sums;
  float* pieces;  ///< if parts > 1: [part][dk, dv][sequence][keys][kv_heads][head width]
  /// With soft-capped scores: what cuda::tanh_of takes, and 1 over the cap for powers of two. scale_log2 is then that cap.
  float tanh_exponent, inverse_cap_log2;
  int window;  ///< likewise: keys that a query sees at most, its own included
};

/// Maps with boxes of a warpgroup's rows (own) or of a block (streamed).
struct BackwardMaps {
  CUtensorMap own[2], streamed[2];  ///< dq: q, dout and k, v; dk/dv: k, v and q, dout
  CUtensorMap out[2];               ///< dq kernel: dq; dk/dv kernel: dk, dv
};

}  // namespace precbench::hopper
