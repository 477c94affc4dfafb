// A corpus on disk as one continuous token stream, cut into windows that are visited in random order.
#pragma once

#include <string>
#include <vector>

#include "models/checkpoint/mapped_file.h"
#include "models/data/data.h"

namespace precbench {

/// Storage of a token; the value is its size in bytes.
enum class TokenWidth : int { u8 = 1, u16 = 2, u32 = 4 };

/// Memory-mapped files laid end to end. A span is a run of tokens that is contiguous in a file; only the
/// table of spans is held in RAM. In text (u8) spans are documents, separated by one end-of-text token 0.
class Corpus final : public DataSource {
 public:
  Corpus(std::uint64_t seed, std::int64_t vocab, TokenWidth width)
      : seed_(seed), vocab_(vocab), width_(width) {}

  /// Takes over the file that contains the next spans. The reference is valid until the next file is added.
  const MappedFile& add_file(MappedFile file);
  /// Appends `count` tokens starting at `data` in the file added last.
  void add_span(const std::byte* data, std::int64_t count);
  void set_description(std::string description, std::int64_t skipped) {
    description_ = std::move(description);
    skipped_ = skipped;
  }

  TokenWidth width() const { return width_; }
  std::int64_t tokens() const;  ///< in the whole corpus
  std::int64_t files() const { return static_cast<std::int64_t>(files_.size()); }

  std::int64_t vocab() const override { return vocab_; }
  /// Windows of T + 1 tokens start every T tokens. An epoch visits each once, every epoch in another order.
  void sequence(std::uint64_t index, std::int64_t T, std::int32_t* tokens) const override;
  std::int64_t sequences(std::int64_t T) const override { return (tokens() - 1) / T; }
  std::optional<double> entropy_nats() const override { return std::nullopt; }
  std::string describe() const override { return description_; }
  std::int64_t skipped() const override { return skipped_; }

 private:
  struct Span {
    std::int64_t first;  // position of its first token in the corpus
    const std::byte* data;
  };

  std::int64_t separator() const { return width_ == TokenWidth::u8 ? 1 : 0; }
  void copy(std::int64_t first, std::int64_t count, std::int32_t* tokens) const;
  void forget(std::int64_t first, const std::byte* data, std::int64_t count) const;

  std::uint64_t seed_;
  std::int64_t vocab_;
  TokenWidth width_;
  std::string description_;
  std::int64_t skipped_ = 0;
  std::vector<MappedFile> files_;
  std::vector<std::int64_t> file_first_;  // position of each file's first token in the corpus
  std::vector<Span> spans_;
  std::int64_t end_ = 0;  // where the next span would start
};

}  // namespace precbench
