// Checksums by block. See block_sums.h.
#include "bench/step/block_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "kernels/base/checksum.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

/// Parses a number and one space from the front of `line` and removes them. Returns false if they are not
/// there.
template <class T>
bool take_number(std::string_view& line, T& value, int base) {
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value, base);
  if (error != std::errc() || end == line.data() + line.size() || *end != ' ') return false;
  line.remove_prefix(static_cast<std::size_t>(end - line.data()) + 1);
  return true;
}

}  // namespace

BlockSums::BlockSums(const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    Block block;
    std::int64_t first = 0;
    const bool whole = end != text.npos && take_number(line, block.sum, 16) && take_number(line, first, 10) &&
                       take_number(line, block.bytes, 10) && !line.empty() && first >= 0 && block.bytes >= 0;
    if (!whole || !tensors_[std::string(line)].emplace(first, block).second)
      throw InvalidInput(path + ": damaged: not the checksums of a checkpoint");
    text.remove_prefix(end + 1);
  }
}

void BlockSums::add(const std::string& name, std::int64_t first, const std::byte* data, std::int64_t bytes) {
  Blocks& blocks = tensors_[name];
  for (std::int64_t done = 0; done < bytes; done += kBlockBytes) {
    const std::int64_t size = std::min(kBlockBytes, bytes - done);
    blocks[first + done] = {size, checksum(data + done, size)};
  }
}

void BlockSums::add(BlockSums&& other) {
  for (auto& [name, blocks] : other.tensors_) tensors_[name].merge(blocks);
}

std::string BlockSums::text() const {
  std::string text;
  for (const auto& [name, blocks] : tensors_)
    for (const auto& [first, block] : blocks)
      fmt::format_to(std::back_inserter(text), "{:016x} {} {} {}\n", block.sum, first, block.bytes, name);
  return text;
}

bool BlockSums::cover(const std::string& name, std::int64_t bytes) const {
  const auto tensor = tensors_.find(name);
  if (tensor == tensors_.end()) return bytes == 0;
  std::int64_t covered = 0;
  for (const auto& [first, block] : tensor->second) {
    if (first != covered || block.bytes > bytes - covered) return false;
    covered += block.bytes;
  }
  return covered == bytes;
}

std::pair<BlockSums::Blocks::const_iterator, BlockSums::Blocks::const_iterator> BlockSums::those_of(
    const std::string& name, Range part) const {
  static const Blocks kNone;
  const auto tensor = tensors_.find(name);
  if (tensor == tensors_.end() || part.begin >= part.end) return {kNone.end(), kNone.end()};
  const Blocks& blocks = tensor->second;
  auto first = blocks.upper_bound(part.begin);
  if (first != blocks.begin()) --first;
  return {first, blocks.lower_bound(part.end)};
}

BlockSums::Range BlockSums::around(const std::string& name, Range part) const {
  const auto [begin, end] = those_of(name, part);
  if (begin == end) return part;
  const auto last = std::prev(end);
  return {begin->first, last->first + last->second.bytes};
}

BlockSums::Range BlockSums::damaged(const std::string& name, const std::byte* data, Range part) const {
  const auto [begin, end] = those_of(name, part);
  for (auto block = begin; block != end; ++block) {
    const auto& [first, known] = *block;
    if (checksum(data + first, known.bytes) != known.sum) return {first, first + known.bytes};
  }
  return {};
}

}  // namespace precbench
