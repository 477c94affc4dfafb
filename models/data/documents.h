// Documents of a prompt and an answer, for fine-tuning: one per sequence, and only the answer's tokens have a loss.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/data/data.h"

namespace precbench {

/// Returns true for the name of a file of documents: *.jsonl.
bool is_documents(const std::string& path);

/// Documents in memory. A sequence, whose T is that of the options, is one document, padded at its end with its last
/// token; attention is causal, so that padding has no influence on what precedes it.
class Documents final : public DataSource {
 public:
  /// Reads JSON Lines: {"prompt": ..., "answer": ...}, each a string, whose UTF-8 bytes are the tokens and whose
  /// answer ends with token 0, or a list of token ids. Throws InvalidInput that names file, line and reason.
  Documents(const DataOptions& options, std::string_view text);

  std::int64_t vocab() const override { return vocab_; }
  /// An epoch visits each document once, every epoch in another order.
  void sequence(std::uint64_t index, std::int64_t T, std::int32_t* tokens) const override;
  std::int64_t sequences(std::int64_t) const override { return std::ssize(documents_); }
  void mark_counted(std::uint64_t index, std::int64_t T, std::uint8_t* counted) const override;
  std::int64_t counted_targets(std::uint64_t index, std::int64_t T) const override;
  std::optional<double> entropy_nats() const override { return std::nullopt; }
  std::string describe() const override { return description_; }
  std::int64_t skipped() const override { return 0; }

 private:
  struct Document {
    std::int64_t first;           // in tokens_
    std::int64_t prompt, answer;  // numbers of tokens
    std::int64_t size() const { return prompt + answer; }
  };
  const Document& at(std::uint64_t index) const;

  std::uint64_t seed_;
  std::int64_t vocab_;
  std::vector<std::int32_t> tokens_;
  std::vector<Document> documents_;
  std::string description_;
};

}  // namespace precbench
