// Runs held-out text forward, in the recipe and in BF16. See held_out.h.
#include "bench/step/held_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "bench/case/trained_text.h"
#include "bench/step/fidelity.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "models/data/data_doubts.h"
#include "models/data/documents.h"
#include "results/record/statistics.h"

namespace precbench {
namespace {

/// Rolling hash of the last `length` tokens: sum of (token + 1) * kBase^place, modulo 2^64.
class RollingHash {
 public:
  explicit RollingHash(std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) leaving_ *= kBase;
  }
  void add(std::int32_t token) { value_ = value_ * kBase + number(token); }
  void drop(std::int32_t token) { value_ -= leaving_ * number(token); }
  std::uint64_t value() const { return value_; }

 private:
  static constexpr std::uint64_t kBase = 0x9e3779b97f4a7c15u;
  static std::uint64_t number(std::int32_t token) { return static_cast<std::uint64_t>(token) + 1; }
  std::uint64_t value_ = 0, leaving_ = 1;
};

/// Compares the outputs of a reading with BF16's on the prepared tokens. Its recipe shares nothing with the run's but
/// the weights.
std::vector<float> compare(Rank& rank, const Plan& plan, const ConvertedLayers& reading,
                           const Tensor& features) {
  TransformerOptions options = rank.transformer_options(reading);
  options.recompute_norms = true;
  options.exchange.codes = false;
  Transformer transformer(rank.device(), rank.arena(), rank.parameters(), plan.model, options);
  return rank.compare_outputs(transformer, features);
}

/// Returns a reading with the mean of the sequences' losses and of groups of them.
Reading reading_of(const std::string& recipe, const std::vector<double>& losses) {
  constexpr double kSteps = 1e7;  // of a nat, to which groups are rounded: records need no noise digits
  Reading reading{recipe, finite(mean_and_spread(losses).mean), {}};
  const auto count = static_cast<std::int64_t>(losses.size()), groups = std::min(kReadingGroups, count);
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::vector<double> own(losses.begin() + count * group / groups,
                                  losses.begin() + count * (group + 1) / groups);
    reading.groups.push_back(std::round(mean_and_spread(own).mean * kSteps) / kSteps);
  }
  return reading;
}

}  // namespace

HeldOut::HeldOut(const Plan& plan) : plan_(plan), sequences_((plan.fields.eval_tokens - 1) / plan.T + 1) {
  const std::string& path = plan.fields.eval_data;
  try {
    data_ = open_held_out(plan.fields, plan.model);
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("--eval-data: {}", error.what()));
  }
  if (const std::int64_t whole = data_->sequences(plan.T); whole < sequences_)
    throw InvalidInput(fmt::format("--eval-data: {}: holds {} of {} tokens, --eval-tokens {} needs {}", path,
                                   plural(whole, "sequence"), plan.T, plan.fields.eval_tokens, sequences_));
}

std::vector<std::string> HeldOut::warnings() const { return token_warnings(*data_, plan_.fields.eval_data); }

std::vector<std::uint64_t> HeldOut::batch_of(Rank& rank, std::size_t first) const {
  const std::int64_t begin = plan_.parameters.parallel.batch_rank(rank.comm().rank()) * plan_.B;
  std::vector<std::uint64_t> batch;
  for (std::int64_t b = 0; b < plan_.B; ++b)
    batch.push_back((first + static_cast<std::uint64_t>(begin + b)) % static_cast<std::uint64_t>(sequences_));
  return batch;
}

void HeldOut::append_means(Rank& rank, const std::vector<std::uint64_t>& batch,
                           const std::vector<float>& tokens, std::vector<double>& means) const {
  const ParallelDims& dims = plan_.parameters.parallel;
  const std::int64_t B = plan_.B, T = plan_.T, round = B * dims.batch_ranks();
  const std::int64_t begin = dims.batch_rank(rank.comm().rank()) * B;  // of this rank's batch in the round
  const RowMap rows = rank.rows();
  std::vector<double> sums(B, 0.0);
  for (std::size_t row = 0; row < tokens.size(); ++row)
    if (rank.counted()[row]) sums[rows.of(static_cast<std::int64_t>(row)) / T] += tokens[row];
  std::vector<float> own(round, 0.0f);
  const bool counts = dims.place_of(rank.comm().rank()).tensor == 0;  // all tensor ranks have the same losses
  for (std::int64_t b = 0; b < B && counts; ++b)
    own[begin + b] = static_cast<float>(sums[b] / static_cast<double>(data_->counted_targets(batch[b], T)));
  // A mean is nonzero only on the ranks that share its sequence; without context ranks the sum is exact.
  if (rank.comm().size() > 1) {
    const Scope scope(rank.arena());
    const Tensor all = rank.arena().push_uncounted(DType::f32, 1, round);
    rank.device().upload(all, own.data());
    rank.comm().all_reduce(all);
    rank.device().download(own.data(), all);
  }
  means.insert(means.end(), own.begin(), own.end());
}

std::vector<double> HeldOut::sequence_losses(Rank& rank, Transformer& transformer) const {
  std::vector<double> losses;
  while (static_cast<std::int64_t>(losses.size()) < sequences_) {
    const std::vector<std::uint64_t> batch = batch_of(rank, losses.size());
    append_means(rank, batch, rank.token_losses(transformer, *data_, batch), losses);
  }
  losses.resize(sequences_);  // drops those that wrapped around
  if (is_documents(plan_.fields.eval_data)) weigh_documents(losses);
  return losses;
}

std::int64_t HeldOut::targets() const {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < sequences_; ++i)
    sum += data_->counted_targets(static_cast<std::uint64_t>(i), plan_.T);
  return sum;
}

void HeldOut::weigh_documents(std::vector<double>& losses) const {
  const auto share = [this, all = static_cast<double>(targets())](std::size_t i) {
    return static_cast<double>(data_->counted_targets(i, plan_.T)) / all;
  };
  double mean = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) mean += share(i) * losses[i];
  const auto n = static_cast<double>(losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) losses[i] = mean + n * share(i) * (losses[i] - mean);
}

Evaluation HeldOut::evaluate(Rank& rank, std::int64_t step) const {
  rank.parameters().begin_step();
  const std::vector<double> losses = sequence_losses(rank, rank.transformer());
  const auto [mean, sd] = mean_and_spread(losses);
  Evaluation result{step, targets(), finite(mean), std::nullopt, std::nullopt};
  if (sequences_ > 1) result.loss_error = finite(sd / std::sqrt(static_cast<double>(sequences_)));
  if (!plan_.recipe.quantized()) {
    result.bf16_loss = result.loss;
  } else if (!plan_.fp8_gather && !plan_.fp8_weights && !rank.parameters().drops_frozen_values()) {
    Transformer bf16(rank.device(), rank.arena(), rank.parameters(), plan_.model,
                     plan_.bf16_transformer(rank.comm().rank()));
    result.bf16_loss = finite(mean_and_spread(sequence_losses(rank, bf16)).mean);
  }
  return result;
}

std::optional<std::vector<Reading>> HeldOut::read(Rank& rank) const {
  if (plan_.readings.empty()) return std::nullopt;
  rank.parameters().begin_step();
  Transformer bf16(rank.device(), rank.arena(), rank.parameters(), plan_.model,
                   plan_.bf16_transformer(rank.comm().rank()));
  // The sequences' mean log-probability of the next token, recipe minus BF16, and the distances of the batches.
  const std::size_t count = plan_.readings.size();
  std::vector<std::vector<double>> gains(count);
  std::vector<std::vector<BatchOutputs>> outputs(count);
  const std::int64_t round = plan_.B * plan_.parameters.parallel.batch_ranks();
  const RowMap rows = rank.rows();
  for (std::int64_t first = 0; first < sequences_; first += round) {
    const std::vector<std::uint64_t> batch = batch_of(rank, static_cast<std::size_t>(first));
    const std::int64_t begin = first + plan_.parameters.parallel.batch_rank(rank.comm().rank()) * plan_.B;
    rank.prepare_sequences(*data_, batch);
    const Scope scope(rank.arena());
    const Tensor features = rank.push_features(bf16);
    for (std::size_t i = 0; i < count; ++i) {
      const std::vector<float> distances = compare(rank, plan_, plan_.readings[i], features);
      std::vector<float> differences;
      BatchOutputs own;
      for (std::size_t row = 0; row < distances.size() / 2; ++row) {
        differences.push_back(distances[2 * row]);
        const std::int64_t sequence = begin + rows.of(static_cast<std::int64_t>(row)) / plan_.T;
        if (rank.counted()[row] && sequence < sequences_) own.add(distances[2 * row], distances[2 * row + 1]);
      }
      append_means(rank, batch, differences, gains[i]);
      outputs[i].push_back(over_ranks(rank, own));
    }
  }
  const std::vector<double> losses = sequence_losses(rank, bf16);
  std::vector<Reading> readings = {reading_of("bf16", losses)};
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<double>& gain = gains[i];
    gain.resize(sequences_);
    if (is_documents(plan_.fields.eval_data)) weigh_documents(gain);
    for (std::size_t k = 0; k < gain.size(); ++k) gain[k] = losses[k] - gain[k];
    readings.push_back(reading_of(plan_.readings[i].recipe.name, gain));
    readings.back().outputs = summarize(outputs[i], true);
  }
  return readings;
}

void HeldOut::account(Rank& rank, const Plan& plan) {
  Transformer bf16(rank.device(), rank.arena(), rank.parameters(), plan.model,
                   plan.bf16_transformer(rank.comm().rank()));
  const Scope scope(rank.arena());
  const Tensor features = rank.push_features(bf16);
  for (const ConvertedLayers& reading : plan.readings) compare(rank, plan, reading, features);
}

std::size_t HeldOut::seen(const DataSource& training, std::size_t steps, std::int64_t passage) const {
  const std::int64_t T = plan_.T;
  std::vector<std::int32_t> tokens(T + 1);
  std::unordered_set<std::uint64_t> wanted;
  std::vector<bool> maybe(std::size_t{1} << 20);  // a filter for nearly all tokens, cheaper than the set
  const auto place = [](std::uint64_t hash) { return hash >> 44; };
  for (std::int64_t i = 0; i < sequences_; ++i) {
    data_->sequence(static_cast<std::uint64_t>(i), T, tokens.data());
    RollingHash hash(passage);
    for (std::int64_t t = 0; t < passage; ++t) hash.add(tokens[t]);
    wanted.insert(hash.value());
    maybe[place(hash.value())] = true;
  }
  const std::size_t all = wanted.size();
  const std::uint64_t trained = steps * static_cast<std::uint64_t>(plan_.tokens_per_step() / T);
  for (std::uint64_t i = 0; i < trained && !wanted.empty(); ++i) {
    training.sequence(i, T, tokens.data());
    RollingHash hash(passage);
    for (std::int64_t t = 0; t <= T; ++t) {
      hash.add(tokens[t]);
      if (t >= passage) hash.drop(tokens[t - passage]);
      if (t + 1 >= passage && maybe[place(hash.value())]) wanted.erase(hash.value());
    }
  }
  return all - wanted.size();
}

std::vector<std::string> HeldOut::overlap(const DataSource& training, std::size_t steps) const {
  if (plan_.held_out && plan_.held_out == plan_.data.fingerprint)
    return {"--eval-data: holds what --data holds: its loss is one of text that was trained on"};
  // Half a sequence: shorter passages repeat by chance, longer ones rarely fit into one training sequence.
  const std::int64_t passage = std::max<std::int64_t>(1, plan_.T / 2);
  const std::size_t found = seen(training, steps, passage);
  if (constexpr std::size_t kPercent = 100; found * kPercent <= static_cast<std::size_t>(sequences_))
    return {};
  return {fmt::format("--eval-data: {} of {} sequences begin with {} tokens in a row that were trained on",
                      found, sequences_, passage)};
}

}  // namespace precbench
