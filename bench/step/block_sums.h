// Checksums of a checkpoint's tensors, a block at a time: whoever writes a part sums its blocks on the way, and whoever
// reads any part, of another sharding too, checks the blocks that it lies in. Written down as lines of text:
//   SUM FIRST BYTES NAME      of BYTES bytes of the tensor from its byte FIRST on, NAME as in StateTensor
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace precbench {

/// At most. A part that ends inside a block has all of it read, so blocks are small beside parts.
inline constexpr std::int64_t kBlockBytes = std::int64_t{4} << 20;

class BlockSums {
 public:
  BlockSums() = default;
  /// Of what `text` wrote down. Throws InvalidInput, which names `path`.
  BlockSums(const std::string& path, std::string_view text);

  /// Of bytes of a tensor from its byte `first` on, which no one has added.
  void add(const std::string& name, std::int64_t first, const std::byte* data, std::int64_t bytes);
  /// What others have added.
  void add(BlockSums&& other);
  std::string text() const;

  /// Whether blocks cover a tensor of so many bytes without a gap.
  bool cover(const std::string& name, std::int64_t bytes) const;

  struct Range {
    std::int64_t begin = 0, end = 0;
    bool empty() const { return begin == end; }
  };
  /// Of the blocks that bytes [begin, end) of a tensor lie in; the bytes themselves where there are none.
  Range around(const std::string& name, Range part) const;
  /// The first of these blocks whose bytes are others than those that were added; empty if none. `data`: the tensor's first byte.
  Range damaged(const std::string& name, const std::byte* data, Range part) const;

 private:
  struct Block {
    std::int64_t bytes = 0;
    std::uint64_t sum = 0;
  };
  using Blocks = std::map<std::int64_t, Block>;  // by first byte

  /// That `part` lies in.
  std::pair<Blocks::const_iterator, Blocks::const_iterator> those_of(const std::string& name,
                                                                     Range part) const;

  std::map<std::string, Blocks> tensors_;
};

}  // namespace precbench
