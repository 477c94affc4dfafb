// Tells kinds of data apart after they are opened. See data_doubts.h.
#include "models/data/data_doubts.h"

#include <fmt/format.h>

#include "models/data/corpus.h"
#include "models/data/documents.h"

namespace precbench {

bool reads_bytes(const DataSource& data) {
  if (const auto* corpus = dynamic_cast<const Corpus*>(&data)) return corpus->width() == TokenWidth::u8;
  const auto* documents = dynamic_cast<const Documents*>(&data);
  return documents && documents->has_text();
}

std::vector<std::string> token_warnings(const DataSource& data, const std::string& path) {
  constexpr std::int64_t kUint16Values = 1 << 16;
  const auto* corpus = dynamic_cast<const Corpus*>(&data);
  if (!corpus || corpus->width() != TokenWidth::u16 || corpus->vocab() <= kUint16Values) return {};
  return {fmt::format(
      "uint16 tokens: the vocabulary has {} tokens, and {} cannot hold ids above {}: tokens of this model belong in a "
      ".u32 file",
      corpus->vocab(), path, kUint16Values - 1)};
}

}  // namespace precbench
