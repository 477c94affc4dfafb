// Parts of sequences that several ranks share (context parallelism). A sequence of T tokens is cut into 2 N
// chunks, and rank r of N has chunks r and 2 N - 1 - r: with a causal mask every rank then has the same
// number of visible pairs of queries and keys. A rank's rows are half-major, [early, late][B][chunk]. A
// single rank has whole sequences, [B][T]. Nothing else computes positions.
#pragma once

#include <cstdint>

#include "kernels/numerics/formats.h"

namespace precbench {

/// Maps local rows to rows of the matrix of all ranks. Converts from the number of the first row, for rows
/// that are consecutive there.
struct RowMap {
  std::int64_t first = 0;  ///< row of the first sequence's first token
  std::int64_t half = 0;   ///< rows of a half; 0: all rows are consecutive
  std::int64_t chunk = 1, T = 0;
  std::int64_t early = 0, late = 0;  ///< positions of the first row of a chunk in either half

  constexpr RowMap(std::int64_t first_row = 0) : first(first_row) {}  // NOLINT(google-explicit-constructor)

  PRECBENCH_HD constexpr std::int64_t of(std::int64_t row) const {
    if (half == 0) return first + row;
    const bool is_late = row >= half;
    const std::int64_t in_half = is_late ? row - half : row, sequence = in_half / chunk;
    return first + sequence * T + (is_late ? late : early) + in_half - sequence * chunk;
  }
};

/// One rank's part of every sequence.
struct SequencePart {
  std::int64_t T = 0;  ///< tokens of a whole sequence; a multiple of 2 parts unless there is one part
  int parts = 1, index = 0;

  constexpr bool whole() const { return parts == 1; }
  constexpr int halves() const { return whole() ? 1 : 2; }
  constexpr std::int64_t chunk() const { return whole() ? T : T / (2 * parts); }
  /// Number of this rank's tokens of a sequence.
  constexpr std::int64_t tokens() const { return halves() * chunk(); }
  /// Returns the position of the first token of a half's chunk.
  constexpr std::int64_t start(int half) const {
    return (half == 0 ? index : 2 * parts - 1 - index) * chunk() * (whole() ? 0 : 1);
  }
  /// Maps this rank's rows of B sequences to rows of [sequences of all ranks][T]; `first_sequence`: of those.
  constexpr RowMap rows(std::int64_t B, std::int64_t first_sequence = 0) const {
    RowMap map(first_sequence * T);
    if (whole()) return map;
    map.half = B * chunk();
    map.chunk = chunk();
    map.T = T;
    map.early = start(0);
    map.late = start(1);
    return map;
  }
};

}  // namespace precbench
