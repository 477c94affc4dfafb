// The synthetic Markov language. Word s is followed by the words order[(s + j) mod S], j = 0..3, where
// `order` is a random permutation of the words. Each j permutes s, so all words are equally frequent in the
// long run, and the chain cannot be trapped in a subset of them. Every row has the same probabilities and
// therefore the same entropy, which is the entropy rate of the chain.
#include "models/data/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "models/data/counter_random.h"

namespace precbench {
namespace {

constexpr std::uint64_t kMaxWords = 256;

/// A fair four-bit draw picks the successor: 8, 4, 2 and 2 of the 16 draws.
constexpr std::array<std::uint8_t, 16> kSuccessorOfDraw = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3};

/// The seed's independent random streams.
enum Stream : std::uint64_t { kWordOrder, kTokenOfWord, kSequences };

class SyntheticData final : public DataSource {
 public:
  SyntheticData(std::uint64_t seed, std::int64_t vocab) : seed_(seed), vocab_(vocab) {
    const std::uint64_t words = std::min(static_cast<std::uint64_t>(vocab), kMaxWords);
    for (std::uint64_t s = 0; s < words; ++s) {
      order_.push_back(permute(s, words, mix64(seed, kWordOrder)));
      token_.push_back(static_cast<std::int32_t>(
          permute(s, static_cast<std::uint64_t>(vocab), mix64(seed, kTokenOfWord))));
    }
    // With fewer than four words some successors are the same word; their probabilities add up.
    std::vector<int> draws(words, 0);
    for (const std::uint8_t j : kSuccessorOfDraw) ++draws[j % words];
    for (const int count : draws) {
      const double probability = count / static_cast<double>(kSuccessorOfDraw.size());
      if (count > 0) entropy_ -= probability * std::log(probability);
    }
  }

  std::int64_t vocab() const override { return vocab_; }

  void sequence(std::uint64_t index, std::int64_t T, std::int32_t* tokens) const override {
    constexpr std::uint64_t kDrawsPerHash = 16;
    const std::uint64_t words = order_.size();
    const std::uint64_t key = mix64(mix64(seed_, kSequences), index);
    std::uint64_t word = mix64(key) % words;
    std::uint64_t bits = 0;
    for (std::uint64_t t = 0; t <= static_cast<std::uint64_t>(T); ++t) {
      tokens[t] = token_[word];
      if (t % kDrawsPerHash == 0) bits = mix64(key, 1 + t / kDrawsPerHash);
      word = order_[(word + kSuccessorOfDraw[bits & 15]) % words];
      bits >>= 4;
    }
  }

  std::int64_t sequences(std::int64_t) const override { return std::numeric_limits<std::int64_t>::max(); }

  std::optional<double> entropy_nats() const override { return entropy_; }

  std::string describe() const override {
    return fmt::format("synthetic: Markov chain over {} words, vocabulary {}, entropy {:.4f} nats, seed {}",
                       order_.size(), vocab_, entropy_, seed_);
  }
  std::int64_t skipped() const override { return 0; }

 private:
  std::uint64_t seed_;
  std::int64_t vocab_;
  std::vector<std::uint64_t> order_;
  std::vector<std::int32_t> token_;
  double entropy_ = 0;
};

}  // namespace

std::unique_ptr<DataSource> make_synthetic_data(std::uint64_t seed, std::int64_t vocab) {
  return std::make_unique<SyntheticData>(seed, vocab);
}

}  // namespace precbench
