// Where training tokens come from: the built-in synthetic source, text as bytes, or files of tokens. Whatever
// the source, sequence number i is a pure function of (data, seed, i): the same for every recipe, device and
// rank count.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace precbench {

/// An endless, numbered supply of token sequences. Const members may be called from several threads at once.
class DataSource {
 public:
  virtual ~DataSource() = default;

  /// Every token is in [0, vocab()).
  virtual std::int64_t vocab() const = 0;

  /// Writes sequence `index` as T + 1 tokens: inputs are tokens [0, T), targets are tokens [1, T + 1).
  virtual void sequence(std::uint64_t index, std::int64_t T, std::int32_t* tokens) const = 0;

  /// How many different sequences of T + 1 tokens there are: the first so many have none twice.
  virtual std::int64_t sequences(std::int64_t T) const = 0;

  /// The lowest mean next-token cross-entropy, in nats, that any model can reach; known for synthetic data
  /// only.
  virtual std::optional<double> entropy_nats() const = 0;

  /// One line for people and records: kind, place and size of the data, and what was skipped.
  virtual std::string describe() const = 0;
  /// Files and folders that could not be read and are not part of the data.
  virtual std::int64_t skipped() const = 0;
};

struct DataOptions {
  /// Empty: synthetic. A file: token file if it ends in .bin (llm.c), .u16 or .u32 (raw little-endian
  /// tokens), else text. A directory: every file below it whose name matches `glob`, all of one kind, in
  /// sorted order.
  std::string path;
  std::string glob;  ///< fnmatch pattern on file names in a directory, e.g. "*.h"; empty means every file
  std::uint64_t seed = 0;  ///< decides the order of the windows, or the synthetic language itself
  std::int64_t vocab = 0;  ///< the model's vocabulary; text needs at least 256
  std::int64_t T = 0;      ///< the longest sequence that will be asked for; the data must hold T + 1 tokens
};

/// Opens and checks the data. InvalidInput with one line for data that is missing, empty, unreadable, too
/// short, corrupt, or has tokens beyond the vocabulary.
std::unique_ptr<DataSource> open_data(const DataOptions& options);

/// The number of the sequence that stands in row `b` of a rank's micro-batch. N ranks see the same global
/// batch in a step as one rank that accumulates N times as many micro-batches.
constexpr std::uint64_t sequence_index(std::uint64_t step, std::uint64_t micro_step,
                                       std::uint64_t accumulation, std::uint64_t rank, std::uint64_t ranks,
                                       std::uint64_t batch, std::uint64_t b) {
  return ((step * accumulation + micro_step) * ranks + rank) * batch + b;
}

}  // namespace precbench
