// Sources of training tokens: synthetic data, text as bytes, token files, or documents of prompt and answer. Sequence i
// is a pure function of (data, seed, i): the same for every recipe, device and rank count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace precbench {

inline constexpr std::int64_t kByteValues = 256;  ///< smallest vocabulary for text, a token for every byte

/// An endless, numbered supply of token sequences. Const members are thread-safe.
class DataSource {
 public:
  virtual ~DataSource() = default;

  /// Vocabulary size; every token is in [0, vocab()).
  virtual std::int64_t vocab() const = 0;

  /// Writes sequence `index` as T + 1 tokens: inputs are tokens [0, T), targets are tokens [1, T + 1).
  virtual void sequence(std::uint64_t index, std::int64_t T, std::int32_t* tokens) const = 0;

  /// Writes 1 for every target of sequence `index` that has a loss and 0 for every other, [T].
  virtual void mark_counted(std::uint64_t, std::int64_t T, std::uint8_t* counted) const {
    std::fill_n(counted, T, std::uint8_t{1});
  }
  /// Returns the number of targets of sequence `index` that have a loss, at least 1.
  virtual std::int64_t counted_targets(std::uint64_t, std::int64_t T) const { return T; }

  /// Writes, for every position of sequence `index`, the position at which its document begins, [T]: 0 unless several
  /// documents are packed. Padding behind packed documents is documents of one token.
  virtual void mark_documents(std::uint64_t, std::int64_t T, std::int32_t* first) const {
    std::fill_n(first, T, 0);
  }

  /// Returns the number of different sequences of T + 1 tokens; the first so many indexes are all different.
  virtual std::int64_t sequences(std::int64_t T) const = 0;

  /// Returns the lowest mean next-token cross-entropy, in nats, that any model can reach; known for synthetic
  /// data only.
  virtual std::optional<double> entropy_nats() const = 0;

  /// Returns one line for people and records: kind, path and size of the data, and the number of skipped
  /// files.
  virtual std::string describe() const = 0;
  /// Number of files and folders that could not be read and are not part of the data.
  virtual std::int64_t skipped() const = 0;
};

struct DataOptions {
  /// Empty: synthetic. A file: tokens if it ends in .bin (llm.c), .u16 or .u32 (raw little-endian), documents of
  /// prompt and answer if in .jsonl, else text. A directory: every file below it whose name matches `glob`, all
  /// tokens or all text, in sorted order.
  std::string path;
  std::string glob;        ///< fnmatch pattern on file names in a directory, e.g. "*.h"; empty: every file
  std::uint64_t seed = 0;  ///< order of the windows, or the synthetic language itself
  std::int64_t vocab = 0;  ///< the model's vocabulary; at least 256 for text
  /// Longest sequence that will be requested, of documents the only one; text and tokens must hold T + 1 tokens.
  std::int64_t T = 0;
  bool packed = false;  ///< documents only: as many whole ones in a sequence as fit
};

/// Opens and checks the data. Throws InvalidInput with one line if it is missing, empty, unreadable, too
/// short, corrupt, or has tokens beyond the vocabulary.
std::unique_ptr<DataSource> open_data(const DataOptions& options);

/// Returns the number of the sequence in row `b` of a rank's micro-batch. N ranks see the same global batch
/// in a step as one rank that accumulates N times as many micro-batches.
constexpr std::uint64_t sequence_index(std::uint64_t step, std::uint64_t micro_step,
                                       std::uint64_t accumulation, std::uint64_t rank, std::uint64_t ranks,
                                       std::uint64_t batch, std::uint64_t b) {
  return ((step * accumulation + micro_step) * ranks + rank) * batch + b;
}

}  // namespace precbench
