// A corpus on disk as one long line of tokens, cut into windows and visited in random order.
#pragma once

#include <string>
#include <vector>

#include "models/checkpoint/mapped_file.h"
#include "models/data/data.h"

namespace precbench {

/// How a corpus stores tokens; the value is the bytes of one token.
enum class TokenWidth : int { u8 = 1, u16 = 2, u32 = 4 };

/// Memory-mapped files laid end to end. A stretch of tokens that lies contiguously in a file is a span, and
/// the table of spans is all that is held in RAM. In text (u8) spans are documents, with one end-of-text
/// token 0 between each two.
class Corpus final : public DataSource {
 public:
  Corpus(std::uint64_t seed, std::int64_t vocab, TokenWidth width)
      : seed_(seed), vocab_(vocab), width_(width) {}

  /// Takes over the file that the next spans lie in. The reference holds until the next file.
  const MappedFile& add_file(MappedFile file);
  /// Appends `count` tokens that start at `data` in the file added last.
  void add_span(const std::byte* data, std::int64_t count);
  void set_description(std::string description, std::int64_t skipped) {
    description_ = std::move(description);
    skipped_ = skipped;
  }

  TokenWidth width() const { return width_; }
  std::int64_t tokens() const;  ///< in the whole corpus
  std::int64_t files() const { return static_cast<std::int64_t>(files_.size()); }

  std::int64_t vocab() const override { return vocab_; }
  /// Windows of T + 1 tokens start every T tokens; an epoch visits each once, and the next in another order.
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
