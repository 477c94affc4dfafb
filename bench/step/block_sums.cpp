// Checksums by block. See block_sums.h.
#include "bench/step/block_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

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

/// Parses the columns that a line may have before its name, which begins with no number. Returns false if they are
/// damaged.
bool take_columns(std::string_view& line, ElementMap& place) {
  if (!take_number(line, place.run, 10)) return true;
  const bool whole = take_number(line, place.pitch, 10) && take_number(line, place.skipped, 10) &&
                     place.pitch >= place.run && place.skipped >= 0 && place.skipped < place.run;
  place.first -= place.skipped;
  return whole;
}

}  // namespace

BlockSums::BlockSums(const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    Block block;
    ElementMap& place = block.place;
    const bool whole = end != text.npos && take_number(line, block.sum, 16) &&
                       take_number(line, place.first, 10) && take_number(line, block.bytes, 10) &&
                       place.first >= 0 && block.bytes > 0 && take_columns(line, place) && !line.empty();
    if (!whole || !tensors_[std::string(line)].emplace(place.of(0), block).second)
      throw InvalidInput(path + ": damaged: not the checksums of a checkpoint");
    text.remove_prefix(end + 1);
  }
}

void BlockSums::add(const std::string& name, const ElementMap& place, const std::byte* data,
                    std::int64_t bytes) {
  Blocks& blocks = tensors_[name];
  for (std::int64_t done = 0; done < bytes; done += kBlockBytes) {
    const std::int64_t size = std::min(kBlockBytes, bytes - done);
    blocks[place.of(done)] = {place.from(done), size, checksum(data + done, size)};
  }
}

void BlockSums::add(BlockSums&& other) {
  for (auto& [name, blocks] : other.tensors_) tensors_[name].merge(blocks);
}

std::string BlockSums::text() const {
  std::string text;
  for (const auto& [name, blocks] : tensors_)
    for (const auto& [first, block] : blocks) {
      fmt::format_to(std::back_inserter(text), "{:016x} {} {} ", block.sum, first, block.bytes);
      if (const ElementMap& place = block.place; place.run > 0)
        fmt::format_to(std::back_inserter(text), "{} {} {} ", place.run, place.pitch, place.skipped);
      text += name + "\n";
    }
  return text;
}

bool BlockSums::cover(const std::string& name, std::int64_t bytes) const {
  const auto tensor = tensors_.find(name);
  if (tensor == tensors_.end()) return bytes == 0;
  // The next run of each block, by first byte: the block, and its bytes before that run. Pieces from different writers
  // lie between each other's rows.
  std::map<std::int64_t, std::pair<const Block*, std::int64_t>> next;
  for (const auto& [first, block] : tensor->second) next[first] = {&block, 0};
  std::int64_t covered = 0;
  while (!next.empty()) {
    const auto [block, before] = next.begin()->second;
    const std::int64_t count = std::min(block->bytes - before, block->place.consecutive(before));
    if (next.begin()->first != covered || count > bytes - covered || block->place.pitch > bytes) return false;
    next.erase(next.begin());
    covered += count;
    const std::int64_t done = before + count;
    if (done < block->bytes && !next.emplace(block->place.of(done), std::pair(block, done)).second)
      return false;
  }
  return covered == bytes;
}

std::vector<const BlockSums::Block*> BlockSums::those_of(const std::string& name, Range part) const {
  std::vector<const Block*> found;
  const auto tensor = tensors_.find(name);
  if (tensor == tensors_.end() || part.empty()) return found;
  for (const auto& [first, block] : tensor->second)
    if (first < part.end && range_of(block.place, block.bytes).end > part.begin) found.push_back(&block);
  return found;
}

BlockSums::Range BlockSums::around(const std::string& name, Range part) const {
  const std::vector<const Block*> blocks = those_of(name, part);
  if (blocks.empty()) return part;
  Range all = range_of(blocks.front()->place, blocks.front()->bytes);
  for (const Block* block : blocks) all.end = std::max(all.end, range_of(block->place, block->bytes).end);
  return all;
}

BlockSums::Range BlockSums::damaged(const std::string& name, const std::byte* data, Range part) const {
  std::vector<std::byte> columns;
  for (const Block* block : those_of(name, part)) {
    const Range range = range_of(block->place, block->bytes);
    const std::byte* bytes = data + range.begin;
    if (range.size() > block->bytes) {
      columns.clear();
      for_each_run(block->place, block->bytes, [&](std::int64_t, std::int64_t first, std::int64_t count) {
        columns.insert(columns.end(), data + first, data + first + count);
      });
      bytes = columns.data();
    }
    if (checksum(bytes, block->bytes) != block->sum) return range;
  }
  return {};
}

}  // namespace precbench
