// Distance of the outputs on ranks: equal to one computed in FP64 from both models' hidden states, none for
// BF16, in the order of the recipes' precision, and the same for any sharding.
#include <cmath>
#include <string>
#include <vector>

#include "bench/predict/predict.h"
#include "bench/step/fidelity.h"
#include "bench/step/fidelity_testing.h"
#include "bench/step/rank_testing.h"
#include "bench/step/weights.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

OutputDistance outputs_of(const Case& c) {
  const Plan plan = validate(c);
  std::vector<OutputDistance> results(plan.ranks);
  run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource& data) {
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    results[rank.comm().rank()] = *measure_fidelity(rank, plan, data, ReferencePlace::device).front().outputs;
  });
  for (const OutputDistance& other : results) CHECK(other.divergence.mean == results[0].divergence.mean);
  return results[0];
}

/// Returns log-probabilities of the rows of features times the weights, in FP64.
std::vector<double> log_probabilities(const std::vector<float>& features, const std::vector<float>& weights,
                                      std::int64_t tokens, std::int64_t width, std::int64_t vocab) {
  std::vector<double> result(tokens * vocab);
  for (std::int64_t t = 0; t < tokens; ++t) {
    double* row = &result[t * vocab];
    double largest = -INFINITY, total = 0;
    for (std::int64_t v = 0; v < vocab; ++v) {
      for (std::int64_t i = 0; i < width; ++i)
        row[v] +=
            static_cast<double>(features[t * width + i]) * bf16_decode(bf16_encode(weights[v * width + i]));
      largest = std::max(largest, row[v]);
    }
    for (std::int64_t v = 0; v < vocab; ++v) total += std::exp(row[v] - largest);
    for (std::int64_t v = 0; v < vocab; ++v) row[v] -= largest + std::log(total);
  }
  return result;
}

std::vector<float> features_of(Rank& rank, Transformer& transformer, const Plan& plan, const Tensor& tokens) {
  const Scope scope(rank.arena());
  const Tensor features = rank.arena().push(Segment::activations, DType::bf16, tokens.rows, plan.model.width);
  transformer.forward_features(features, tokens);
  std::vector<float> values(features.size());
  for (std::int64_t i = 0; i < features.size(); ++i) values[i] = bf16_decode(features.as<std::uint16_t>()[i]);
  return values;
}

}  // namespace

TEST_CASE("compare_outputs: equals distances in FP64 from both models' hidden states", "[fidelity]") {
  for (const char* recipe : {"tensorwise", "mxfp8", "nvfp4_all"}) {
    INFO(recipe);
    const Plan plan = validate(fidelity_case(2, recipe));
    run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource& data) {
      rank.parameters().initialize(plan.seed, 5 * kInitialDeviation);
      const std::int64_t M = plan.tokens_per_micro_step(), V = plan.model.vocab;
      std::vector<std::uint64_t> sequences;
      std::vector<std::int32_t> tokens, targets, sequence(plan.T + 1);
      for (std::int64_t b = 0; b < plan.B; ++b) {
        sequences.push_back(static_cast<std::uint64_t>(b) + 3);
        data.sequence(sequences.back(), plan.T, sequence.data());
        tokens.insert(tokens.end(), sequence.begin(), sequence.end() - 1);
        targets.insert(targets.end(), sequence.begin() + 1, sequence.end());
      }
      rank.prepare_sequences(data, sequences);
      rank.parameters().begin_step();
      Transformer bf16(rank.device(), rank.arena(), rank.parameters(), plan.model,
                       plan.bf16_transformer(rank.comm().rank()));
      const std::vector<float> distances = rank.compare_outputs(rank.transformer(), bf16);

      const Tensor ids{tokens.data(), DType::i32, M, 1};
      const std::vector<float> weights =
          saved(rank.parameters(), Parameters::Kind::weights).at("lm_head.weight");
      const std::vector<double> p = log_probabilities(features_of(rank, bf16, plan, ids), weights, M,
                                                      plan.model.width, V),
                                q = log_probabilities(features_of(rank, rank.transformer(), plan, ids),
                                                      weights, M, plan.model.width, V);
      double largest = 0, error = 0, divergence_error = 0, divergence_sum = 0;
      for (std::int64_t t = 0; t < M; ++t) {
        const double difference = q[t * V + targets[t]] - p[t * V + targets[t]];
        double divergence = 0;
        for (std::int64_t v = t * V; v < (t + 1) * V; ++v) divergence += std::exp(p[v]) * (p[v] - q[v]);
        largest = std::max(largest, std::fabs(difference));
        error = std::max(error, std::fabs(distances[2 * t] - difference));
        divergence_error = std::max(divergence_error, std::fabs(distances[2 * t + 1] - divergence));
        divergence_sum += divergence;
      }
      CHECK(largest > 1e-3);
      CHECK(divergence_sum / static_cast<double>(M) > 1e-7);
      CHECK(error < 1e-5);  // of FP32 logits
      CHECK(divergence_error < 1e-6);
    });
  }
}

TEST_CASE("measure_fidelity: outputs of BF16 are at no distance and coarser formats are farther",
          "[fidelity]") {
  const OutputDistance bf16 = outputs_of(fidelity_case(2, "bf16"));
  CHECK(bf16.tokens == 2 * 4 * 64);
  CHECK((bf16.log_probability.mean == 0 && bf16.largest_log_probability == 0));
  CHECK((bf16.divergence.mean == 0 && bf16.largest_divergence == 0));
  const OutputDistance e4m3 = outputs_of(fidelity_case(2, "rowwise")),
                       e4m1 = outputs_of(fidelity_case(2, "rowwise_e4m1"));
  CHECK(*e4m3.log_probability.mean > 0);
  CHECK(*e4m1.log_probability.mean > 2 * *e4m3.log_probability.mean);
  CHECK(*e4m1.divergence.mean > 4 * *e4m3.divergence.mean);
  CHECK(*e4m3.largest_log_probability > *e4m3.log_probability.mean);
  CHECK_FALSE(e4m3.held_out);
}

TEST_CASE("measure_fidelity: several ranks return the outputs' distance of one", "[fidelity]") {
  const OutputDistance one = outputs_of(fidelity_case(2, "mxfp8"));
  for (const auto& [ranks, parallel] : {std::pair{2, "ddp"}, {2, "fsdp"}, {4, "hsdp"}}) {
    INFO(ranks << " " << parallel);
    const OutputDistance many = outputs_of(fidelity_case(2, "mxfp8", ranks, parallel));
    CHECK(many.tokens == one.tokens);
    CHECK(*many.log_probability.mean == Approx(*one.log_probability.mean).epsilon(1e-6));
    CHECK(*many.divergence.mean == Approx(*one.divergence.mean).epsilon(1e-5));
    CHECK(*many.largest_log_probability == Approx(*one.largest_log_probability).epsilon(1e-6));
  }
}

TEST_CASE("measure_fidelity: ranks that share sequences return the outputs' distance of one",
          "[fidelity][context]") {
  const TempDirectory directory;
  std::string bytes;
  for (int i = 0; i < 40 * 64; ++i) bytes += {static_cast<char>(i * i % 101), '\0'};
  for (const bool held_out : {false, true}) {
    Case c = fidelity_case(2, "rowwise");
    if (held_out) c.eval_data = directory.write("held.u16", bytes), c.eval_tokens = 64;
    const OutputDistance one = outputs_of(c);
    c.gpus = c.context = 2;
    const OutputDistance two = outputs_of(c);
    CHECK(two.tokens == one.tokens);
    CHECK(*two.log_probability.mean == Approx(*one.log_probability.mean).epsilon(1e-5));
    CHECK(*two.divergence.mean == Approx(*one.divergence.mean).epsilon(1e-5));
    CHECK(*two.largest_log_probability == Approx(*one.largest_log_probability).epsilon(1e-5));
  }
}

TEST_CASE("measure_fidelity: with --eval-data outputs are compared on held-out text", "[fidelity]") {
  const TempDirectory directory;
  std::string bytes;
  for (int i = 0; i < 40 * 64; ++i) bytes += {static_cast<char>(i * i % 101), '\0'};
  Case c = fidelity_case(2, "mxfp8");
  c.eval_data = directory.write("held.u16", bytes), c.eval_tokens = 64;
  const OutputDistance held_out = outputs_of(c), training = outputs_of(fidelity_case(2, "mxfp8"));
  CHECK(held_out.held_out);
  CHECK(held_out.tokens == training.tokens);
  CHECK(held_out.log_probability.mean != training.log_probability.mean);
  CHECK(*held_out.log_probability.mean > 0);
}

TEST_CASE("measure_fidelity: the comparison of outputs leaves the training step as it was", "[fidelity]") {
  const auto loss_of = [](std::int64_t batches) {
    Case c = fidelity_case(2, "nvfp4_all");
    c.fidelity_batches = batches;
    const Plan plan = validate(c);
    double loss = 0;
    run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource& data) {
      rank.parameters().initialize(plan.seed, kInitialDeviation);
      if (batches > 0) measure_fidelity(rank, plan, data, ReferencePlace::device);
      for (const std::int64_t step : {0, 1}) {
        rank.prepare(data, step, 0);
        rank.enqueue();
        loss = rank.finish().loss;
      }
    });
    return loss;
  };
  CHECK(loss_of(0) == loss_of(2));
}
