// Lengths of the documents that share sequences: which part of causal attention's work is within them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace precbench {

/// The documents of an epoch of packed sequences.
struct PackedLengths {
  std::vector<std::int64_t> documents;  ///< positions of each
  std::int64_t sequences = 0;           ///< that hold them

  /// Returns the number of pairs of a query and a key within documents, relative to that of whole sequences of T
  /// tokens. Both count pairs as model FLOPs do (flops.h): n^2 / 2 for n positions, less (n - w)^2 / 2 beyond a window of
  /// w > 0. Padding counts as nothing.
  double visible(std::int64_t T, std::int64_t window) const {
    const auto doubled_pairs = [window](std::int64_t n) {
      const std::int64_t outside = window > 0 ? std::max<std::int64_t>(0, n - window) : 0;
      return static_cast<double>(n * n - outside * outside);
    };
    double sum = 0;
    for (const std::int64_t n : documents) sum += doubled_pairs(n);
    return sum / (static_cast<double>(sequences) * doubled_pairs(T));
  }
};

}  // namespace precbench
