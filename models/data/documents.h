// Documents of a prompt and an answer, for fine-tuning: one per sequence, or several packed into each. Only the answer's
// tokens have a loss.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/data/data.h"

namespace precbench {

/// Returns true for the name of a file of documents: *.jsonl.
bool is_documents(const std::string& path);

/// Documents in memory. A sequence, whose T is that of the options, is a pack of documents, padded at its end with the last
/// token; attention is causal, so that padding has no influence on what precedes it. A pack is one document, or with
/// options.packed as many as fit (pack_documents). A document's last token is a position too, without a target that
/// counts, unless it is the sequence's last token, which is a target only.
class Documents final : public DataSource {
 public:
  /// Reads JSON Lines: {"prompt": ..., "answer": ...}, each a string, whose UTF-8 bytes are the tokens and whose
  /// answer ends with token 0, or a list of token ids. Throws InvalidInput that names file, line and reason.
  Documents(const DataOptions& options, std::string_view text);

  std::int64_t vocab() const override { return vocab_; }
  /// An epoch visits each pack, and so each document, once, every epoch in another order.
  void sequence(std::uint64_t index, std::int64_t T, std::int32_t* tokens) const override;
  std::int64_t sequences(std::int64_t) const override { return std::ssize(packs_); }
  void mark_counted(std::uint64_t index, std::int64_t T, std::uint8_t* counted) const override;
  std::int64_t counted_targets(std::uint64_t index, std::int64_t T) const override;
  void mark_documents(std::uint64_t index, std::int64_t T, std::int32_t* first) const override;
  /// Returns the number of positions of each document.
  std::vector<std::int64_t> positions() const;
  /// Returns true if a prompt or an answer was a string, whose bytes are its tokens.
  bool has_text() const { return has_text_; }
  std::optional<double> entropy_nats() const override { return std::nullopt; }
  std::string describe() const override { return description_; }
  std::int64_t skipped() const override { return 0; }

 private:
  struct Document {
    std::int64_t first;           // in tokens_
    std::int64_t prompt, answer;  // numbers of tokens
    std::int64_t size() const { return prompt + answer; }
  };
  using Pack = std::vector<std::int64_t>;  // numbers of documents
  const Pack& at(std::uint64_t index) const;
  void read(const DataOptions& options, std::string_view text);

  std::uint64_t seed_;
  std::int64_t vocab_, T_;
  bool packed_, has_text_ = false;
  std::vector<std::int32_t> tokens_;
  std::vector<Document> documents_;
  std::vector<Pack> packs_;
  std::string description_;
};

/// Divides documents into packs of at most `capacity` tokens, given their sizes, each at most `capacity`. Best fit: in an
/// order that depends on `seed`, each goes to the pack that it fills best, or to a new one.
std::vector<std::vector<std::int64_t>> pack_documents(const std::vector<std::int64_t>& sizes,
                                                      std::int64_t capacity, std::uint64_t seed);

}  // namespace precbench
