// Sequence of D's tiles in a Hopper GEMM, and where their operands begin: for one GEMM, or for one GEMM per
// group of rows or of k. The kernels know groups only through the tile order.
//
//   groups of rows (fprop, dgrad)               groups of k (wgrad)
//
//   A, D: rows         B: stacked               A: [rows, all k]      B: [columns, all k]    D: stacked
//   +------------+ 0   +---------+ 0            +----+-------+---+    +----+-------+---+     +---------+ 0
//   | group 0    |     | group 0 |              | 0  |   1   | 2 |    | 0  |   1   | 2 |     | group 0 |
//   |. padding . |     +---------+ columns      +----+-------+---+    +----+-------+---+     +---------+ rows
//   +------------+ o1  | group 1 |                   o1      o2            o1      o2        | group 1 |
//   | group 1    |     +---------+              o1, o2: the groups' offsets on the device, multiples of 128:
//   +------------+ o2  | ...     |              tiles are counted on demand, group after group
//
// Groups begin at multiples of a tile's 128 rows, and each has its part of B or D at a fixed position. So one
// matrix holds all groups of an operand: its tensor map never changes, and stores need no mask.
#pragma once

#include <cstdint>

namespace precbench::hopper {

/// Start of a tile's operands and its position in D.
struct Tile {
  int a_row, b_row;  ///< column, for an MN-major matrix
  int b_k;           ///< start of B's k: for an MN-major stack the group's first row
  int k_block, k_blocks;
  int d_row, d_column;
  int rows;     ///< rows of D from d_row on in this group; may exceed a tile
  int b_scale;  ///< start of B's scales for D's columns
  int group;
  bool beside;  ///< the cluster's tiles are side by side in D and share A; else one below the other, share B
};

struct PlaceInBands {
  int row, column;  ///< in tiles
};

/// Returns the tile in bands of `band` tile rows, column after column within a band: concurrent tiles cover
/// an about square area and read few different rows of A and B.
__device__ inline PlaceInBands in_bands(int index, int row_tiles, int column_tiles, int band) {
  const int per_band = band * column_tiles;
  const int first = index / per_band * band, height = min(band, row_tiles - first);
  const int within = index % per_band;
  return {first + within % height, within / height};
}

/// The tiles of one GEMM; those of a cluster are side by side.
struct DenseOrder {
  static constexpr bool kReadsGroups = false;
  int row_tiles, column_tiles;  ///< in tiles of a cluster
  int band, k_blocks;

  struct Cursor {};

  /// Finds the cluster's tile of this index; returns false after the last one.
  template <class S>
  __device__ bool find(int index, int rank, Cursor&, Tile& tile) const {
    if (index >= row_tiles * column_tiles) return false;
    const PlaceInBands place = in_bands(index, row_tiles, column_tiles, band);
    const int row = place.row * S::kRows, column = (place.column * S::kCluster + rank) * S::kColumns;
    tile = {row, column, 0, 0, k_blocks, row, column, S::kRows, column, 0, true};
    return true;
  }
};

/// The tiles of one GEMM per group, group after group. In a cluster of two blocks one's tile is below the
/// other's, except in the last tile row of an odd number: there they are side by side.
struct GroupedOrder {
  static constexpr bool kReadsGroups = true;
  const int *offsets, *counts;  ///< as in Groups, in device memory
  int groups;
  bool over_k;             ///< groups are of k, else of rows
  bool b_mn_major;         ///< B is MN-major
  int rows, columns;       ///< of a group's D; rows only with over_k
  int depth;               ///< k, for groups of rows
  int column_tiles, band;  ///< band: tile rows

  /// State of the search: indices only grow.
  struct Cursor {
    int group = 0, before = 0;  ///< before: tiles of earlier groups
  };

  template <class S>
  __device__ int tiles_of(int of_rows) const {
    const int row_tiles = (of_rows + S::kRows - 1) / S::kRows;
    if constexpr (S::kCluster == 1) return row_tiles * column_tiles;
    return row_tiles / 2 * column_tiles + row_tiles % 2 * ((column_tiles + 1) / 2);
  }

  template <class S>
  __device__ bool find(int index, int rank, Cursor& at, Tile& tile) const {
    int count = 0, of_rows = 0;
    for (;; ++at.group) {
      if (at.group == groups) return false;
      count = __ldg(counts + at.group);
      of_rows = over_k ? rows : count;
      const bool nothing = S::kAdds && over_k && count == 0;
      const int tiles = nothing ? 0 : tiles_of<S>(of_rows);
      if (index - at.before < tiles) break;
      at.before += tiles;
    }
    bool beside = false;
    const PlaceInBands place =
        place_of<S>(index - at.before, (of_rows + S::kRows - 1) / S::kRows, rank, beside);
    const int row = place.row * S::kRows, column = place.column * S::kColumns;
    const int first = __ldg(offsets + at.group);
    tile = {.a_row = over_k ? row : first + row,
            .b_row = (over_k || b_mn_major ? 0 : at.group * columns) + column,
            .b_k = over_k || !b_mn_major ? 0 : at.group * depth,
            .k_block = over_k ? first / S::kBlockK : 0,
            .k_blocks = ((over_k ? count : depth) + S::kBlockK - 1) / S::kBlockK,
            .d_row = over_k ? at.group * rows + row : first + row,
            .d_column = column,
            .rows = place.column < column_tiles ? of_rows - row : 0,
            .b_scale = at.group * columns + column,
            .group = at.group,
            .beside = beside};
    return true;
  }

 private:
  template <class S>
  __device__ PlaceInBands place_of(int index, int row_tiles, int rank, bool& beside) const {
    if constexpr (S::kCluster == 1) return in_bands(index, row_tiles, column_tiles, band);
    const int pairs = row_tiles / 2;
    beside = index >= pairs * column_tiles;
    if (beside) return {row_tiles - 1, 2 * (index - pairs * column_tiles) + rank};
    const PlaceInBands pair = in_bands(index, pairs, column_tiles, band / 2);
    return {2 * pair.row + rank, pair.column};
  }
};

/// Calls order.find in all lanes of a warp. Values that control loops or branches around wgmmas come from
/// lane 0, so that the compiler knows them to be uniform.
template <class S, class Order>
__device__ inline bool find_together(const Order& order, int index, int rank, typename Order::Cursor& at,
                                     Tile& tile) {
  bool found = order.template find<S>(index, rank, at, tile);
  if constexpr (Order::kReadsGroups) {
    found = __shfl_sync(~0u, found, 0);
    tile.k_blocks = __shfl_sync(~0u, tile.k_blocks, 0);
    tile.rows = __shfl_sync(~0u, tile.rows, 0);
  }
  return found;
}

}  // namespace precbench::hopper
