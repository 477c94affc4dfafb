// Windows of a corpus that lies in memory-mapped spans.
#include "models/data/corpus.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "models/data/counter_random.h"

namespace precbench {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read in place");

namespace {

/// Linux's default: a page fault on a mapped file also maps cached pages around it.
constexpr std::int64_t kFaultAroundBytes = 64 << 10;

template <class Stored>
void widen(const std::byte* source, std::int64_t count, std::int32_t* tokens) {
  for (std::int64_t i = 0; i < count; ++i) {
    Stored stored;
    std::memcpy(&stored, source + i * static_cast<std::int64_t>(sizeof stored), sizeof stored);
    tokens[i] = static_cast<std::int32_t>(stored);
  }
}

}  // namespace

const MappedFile& Corpus::add_file(MappedFile file) {
  file_first_.push_back(end_);
  return files_.emplace_back(std::move(file));
}

void Corpus::add_span(const std::byte* data, std::int64_t count) {
  spans_.push_back({end_, data});
  end_ += count + separator();
}

std::int64_t Corpus::tokens() const { return spans_.empty() ? 0 : end_ - separator(); }

void Corpus::sequence(std::uint64_t index, std::int64_t T, std::int32_t* tokens) const {
  const auto windows = static_cast<std::uint64_t>(sequences(T));
  const std::uint64_t epoch = index / windows;
  const std::uint64_t window = permute(index % windows, windows, mix64(seed_, epoch));
  copy(static_cast<std::int64_t>(window) * T, T + 1, tokens);
}

/// Releases the pages that reading `count` tokens at `data`, position `first` of the corpus, has mapped.
/// Windows come in random order, so nothing useful is lost, and resident memory does not grow to the size of
/// the corpus.
void Corpus::forget(std::int64_t first, const std::byte* data, std::int64_t count) const {
  const auto after = std::upper_bound(file_first_.begin(), file_first_.end(), first);
  const MappedFile& file = files_[static_cast<std::size_t>(after - file_first_.begin() - 1)];
  const std::int64_t begin = data - file.data();
  const std::int64_t end = begin + count * static_cast<std::int64_t>(width_);
  file.forget(std::max<std::int64_t>(0, begin - kFaultAroundBytes), end + kFaultAroundBytes);
}

void Corpus::copy(std::int64_t first, std::int64_t count, std::int32_t* tokens) const {
  const auto after = [](std::int64_t position, const Span& span) { return position < span.first; };
  auto span = std::upper_bound(spans_.begin(), spans_.end(), first, after) - 1;
  for (; count > 0; ++span) {
    const std::int64_t end = std::next(span) == spans_.end() ? end_ : std::next(span)->first;
    const std::int64_t skipped = first - span->first;
    const std::int64_t taken = std::min(count, std::max<std::int64_t>(0, end - separator() - first));
    const std::byte* source = span->data + skipped * static_cast<std::int64_t>(width_);
    switch (width_) {
      case TokenWidth::u8:
        widen<std::uint8_t>(source, taken, tokens);
        break;
      case TokenWidth::u16:
        widen<std::uint16_t>(source, taken, tokens);
        break;
      case TokenWidth::u32:
        widen<std::uint32_t>(source, taken, tokens);
        break;
    }
    forget(first, source, taken);
    tokens += taken;
    count -= taken;
    if (separator() == 1 && count > 0) {
      *tokens++ = 0;
      --count;
    }
    first = end;
  }
}

}  // namespace precbench
