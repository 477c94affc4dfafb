// Checksums of a checkpoint's tensors, block by block. The writer of a part computes the sums of its blocks
// while writing; a reader of any part, in any sharding, verifies the blocks that overlap it. Stored as lines
// of text:
//   SUM FIRST BYTES NAME      sum of BYTES bytes of the tensor from byte FIRST on; NAME as in StateTensor
//   SUM FIRST BYTES RUN PITCH SKIPPED NAME
//                             the same of columns of a matrix: RUN bytes of each row, rows PITCH bytes apart; the
//                             block begins SKIPPED bytes into the RUN of its first row
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/numerics/element_runs.h"

namespace precbench {

/// Largest block. A part that ends inside a block needs the whole block read, so blocks are small compared
/// with parts.
inline constexpr std::int64_t kBlockBytes = std::int64_t{4} << 20;

class BlockSums {
 public:
  BlockSums() = default;
  /// Parses what text() returned. Throws InvalidInput, which names `path`.
  BlockSums(const std::string& path, std::string_view text);

  /// Adds the sums of `bytes` bytes that lie in the tensor as `place` says, which no earlier call has added.
  void add(const std::string& name, const ElementMap& place, const std::byte* data, std::int64_t bytes);
  /// Merges sums that other ranks have computed.
  void add(BlockSums&& other);
  std::string text() const;

  /// Returns true if the blocks cover a tensor of `bytes` bytes without a gap.
  bool cover(const std::string& name, std::int64_t bytes) const;

  using Range = ElementRange;
  /// Returns the byte range of all blocks that overlap `part`; `part` itself if there are none.
  Range around(const std::string& name, Range part) const;
  /// Returns the first block overlapping `part` whose checksum differs; empty if none does. `data`: first
  /// byte of the tensor.
  Range damaged(const std::string& name, const std::byte* data, Range part) const;

 private:
  struct Block {
    ElementMap place;  // where its bytes lie in the tensor
    std::int64_t bytes = 0;
    std::uint64_t sum = 0;
  };
  using Blocks = std::map<std::int64_t, Block>;  // by first byte

  /// Returns the blocks whose range overlaps `part`, by first byte.
  std::vector<const Block*> those_of(const std::string& name, Range part) const;

  std::map<std::string, Blocks> tensors_;
};

}  // namespace precbench
