// Packed documents: in a sequence with others, each has the losses and gradients that it has alone.
#include "models/transformer/step_golden.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

const std::string kPackedGoldens = PRECBENCH_SOURCE_DIR "/models/transformer/golden";

/// A document of a packed sequence: a run of its tokens.
struct Passage {
  std::int64_t sequence, begin, length;
};

/// Divides the sequences into documents of different lengths, the last of which ends with the sequence's last target.
/// Some positions behind the first sequence's documents are padding.
std::vector<Passage> passages_of(std::int64_t B, std::int64_t T) {
  constexpr std::int64_t kPadding = 2;
  std::vector<Passage> passages;
  for (std::int64_t b = 0; b < B; ++b) {
    const std::int64_t end = b == 0 ? T - kPadding : T;
    std::int64_t at = 0;
    for (std::int64_t length = 2 + b; at + length + 3 < end; length += 4) {
      passages.push_back({b, at, length});
      at += length;
    }
    passages.push_back({b, at, end - at});
  }
  return passages;
}

/// A batch of sequences with documents.
struct Batch {
  std::int64_t B;
  std::vector<std::int32_t> tokens, targets, first_key, positions;
  std::vector<float> counted;  // 1 or 0

  Batch(std::int64_t sequences, std::int64_t T)
      : B(sequences), tokens(B * T), targets(B * T), first_key(B * T), positions(B * T), counted(B * T) {}

  /// Weights with which the loss is the mean over the counted targets.
  std::vector<float> weights() const {
    const auto count = std::count(counted.begin(), counted.end(), 1.0f);
    std::vector<float> result = counted;
    for (float& w : result) w *= static_cast<float>(tokens.size()) / static_cast<float>(count);
    return result;
  }
};

/// The golden's sequences as packs, and each document alone in a sequence of its own.
struct Batches {
  Batch packed, alone;
  std::vector<Passage> passages;

  explicit Batches(const Golden& golden)
      : packed(golden.B, golden.T),
        alone(std::ssize(passages_of(golden.B, golden.T)), golden.T),
        passages(passages_of(golden.B, golden.T)) {
    const std::int64_t T = golden.T;
    packed.tokens = golden.tokens;
    packed.targets = golden.targets;
    for (std::int64_t row = 0; row < golden.B * T; ++row)  // padding, until a document is there
      packed.first_key[row] = static_cast<std::int32_t>(row % T);
    for (std::size_t i = 0; i < passages.size(); ++i) {
      const Passage& p = passages[i];
      const std::int64_t from = p.sequence * T + p.begin, to = static_cast<std::int64_t>(i) * T;
      for (std::int64_t t = 0; t < T; ++t) {
        alone.tokens[to + t] = golden.tokens[from + std::min(t, p.length - 1)];
        alone.targets[to + t] = golden.targets[from + std::min(t, p.length - 1)];
        alone.positions[to + t] = static_cast<std::int32_t>(t);
      }
      for (std::int64_t t = 0; t < p.length; ++t) {
        packed.first_key[from + t] = static_cast<std::int32_t>(p.begin);
        packed.positions[from + t] = static_cast<std::int32_t>(t);
        // The target of a document's last token is another document's, unless the sequence ends there.
        const bool counts = t + 1 < p.length || p.begin + p.length == T;
        packed.counted[from + t] = alone.counted[to + t] = counts ? 1.0f : 0.0f;
      }
    }
  }
};

struct Results {
  std::vector<float> losses;  // of every token
  double loss = 0;
  Named gradients;
};

/// `documents`: given to the step.
Results results_of(const Golden& golden, const Batch& batch, bool documents) {
  TestStep step({.model = golden.model, .B = batch.B, .T = golden.T, .reference = true}, make_cpu_device(1));
  step.load(golden.weights());
  if (documents) step.set_documents(batch.first_key, batch.positions);
  Results results{step.token_losses(batch.tokens, batch.targets), 0, {}};
  results.loss = step.forward_backward(batch.tokens, batch.targets, batch.weights());
  results.gradients = step.gradients();
  return results;
}

/// Returns the largest relative difference of a document's token losses from those that it has alone.
double loss_difference(const Batches& batches, std::int64_t T, const Results& packed, const Results& alone) {
  double most = 0;
  for (std::size_t i = 0; i < batches.passages.size(); ++i) {
    const Passage& p = batches.passages[i];
    for (std::int64_t t = 0; t < p.length; ++t) {
      const double got = packed.losses[p.sequence * T + p.begin + t];
      const double want = alone.losses[static_cast<std::int64_t>(i) * T + t];
      most = std::max(most, std::fabs(got - want) / want);
    }
  }
  return most;
}

/// Returns the largest distance of a gradient, in that of a key's bias measured by queries' biases.
Farthest gradient_difference(const Results& packed, const Results& alone) {
  Named got = packed.gradients, want = alone.gradients;
  measure_by_queries(got, want);
  return farthest(got, want);
}

}  // namespace

TEST_CASE("step: documents in a pack have the losses and gradients that they have alone",
          "[transformer][documents]") {
  // Grouped queries, windows, soft-capping, partial and no RoPE, learned positions, sinks, latent heads, experts.
  for (const char* name : {"llama", "qwen3", "llama3.2", "gemma2", "gemma3", "mistral", "cohere2", "gpt2",
                           "phi", "olmo2", "gpt-oss", "deepseek-v3", "qwen3-moe", "hunyuan"}) {
    INFO(name);
    const Golden golden(kPackedGoldens, name);
    const Batches batches(golden);
    REQUIRE(batches.passages.size() > 2 * static_cast<std::size_t>(golden.B));
    const Results packed = results_of(golden, batches.packed, true);
    const Results alone = results_of(golden, batches.alone, false);
    // A token's loss passes through the same operations in another place of larger matrices. Measured: equal bits.
    CHECK(loss_difference(batches, golden.T, packed, alone) <= 16 * kRoundoff);
    CHECK(std::fabs(packed.loss / alone.loss - 1) <= 4 * kRoundoff);
    // Gradients of weights add up the same tokens' in another order, as those of check_fp32_step do. Measured: at most 24
    // unit roundoffs.
    const Farthest difference = gradient_difference(packed, alone);
    INFO(difference.name << ' ' << difference.distance / kRoundoff);
    CHECK(difference.distance <= 64 * kRoundoff);
    // Positive control: documents that see those before them.
    const Results merged = results_of(golden, batches.packed, false);
    CHECK(loss_difference(batches, golden.T, merged, alone) > 1e-3);
    CHECK(gradient_difference(merged, alone).distance > 1e-2);
  }
}

TEST_CASE("step: packed documents match Hugging Face's step on each in a sequence of its own",
          "[transformer][documents]") {
  const Golden golden(kPackedGoldens, "documents");
  const StoredTensor& answers = golden.file.at("answers");
  const auto* has_loss = reinterpret_cast<const std::uint8_t*>(answers.data);
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < golden.B; ++b) {
    std::int64_t length = golden.T;
    while (!has_loss[b * golden.T + length - 1]) --length;
    lengths.push_back(length);
  }
  const std::int64_t all = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  REQUIRE(all < golden.B * golden.T);  // the padding is left out
  Batch packed(1, all);
  std::int64_t at = 0;
  for (std::int64_t b = 0, begin = 0; b < golden.B; begin += lengths[b++])
    for (std::int64_t t = 0; t < lengths[b]; ++t, ++at) {
      packed.tokens[at] = golden.tokens[b * golden.T + t];
      packed.targets[at] = golden.targets[b * golden.T + t];
      packed.counted[at] = has_loss[b * golden.T + t];
      packed.first_key[at] = static_cast<std::int32_t>(begin);
      packed.positions[at] = static_cast<std::int32_t>(t);
    }
  TestStep step({.model = golden.model, .B = 1, .T = all, .reference = true}, make_cpu_device(1));
  step.load(golden.weights());
  step.set_documents(packed.first_key, packed.positions);
  StepOutcome outcome;
  outcome.loss = step.forward_backward(packed.tokens, packed.targets, packed.weights());
  outcome.gradients = step.gradients();
  outcome.grad_norm = step.update(golden.optimizer);
  outcome.weights = step.weights();
  check_fp32_step(golden, outcome);
}

TEST_CASE("step: learned positions restart in every document of a pack", "[transformer][documents]") {
  const Golden golden(kPackedGoldens, "gpt2");
  Batches batches(golden);
  const Results alone = results_of(golden, batches.alone, false);
  for (std::int64_t row = 0; row < golden.B * golden.T; ++row)
    batches.packed.positions[row] = static_cast<std::int32_t>(row % golden.T);
  CHECK(loss_difference(batches, golden.T, results_of(golden, batches.packed, true), alone) > 1e-3);
}

TEST_CASE("step: packed documents with recomputation and micro-steps give the same gradients",
          "[transformer][documents]") {
  const Golden golden(kPackedGoldens, "gemma2");
  const Batches batches(golden);
  const Results once = results_of(golden, batches.packed, true);
  StepSetup setup{.model = golden.model, .B = golden.B, .T = golden.T, .reference = true};
  const auto same = [&] {
    TestStep step(setup, make_cpu_device(1));
    step.load(golden.weights());
    step.set_documents(batches.packed.first_key, batches.packed.positions);
    CHECK(step.forward_backward(batches.packed.tokens, batches.packed.targets, batches.packed.weights()) ==
          once.loss);
    CHECK(first_difference(step.gradients(), once.gradients) == "");
  };
  for_each_recompute(setup, kFullRecomputeKinds, same);
  for_each_recompute(setup, kSelective, same);
  setup.accumulation = static_cast<int>(golden.B);
  setup.B = 1;
  TestStep step(setup, make_cpu_device(1));
  step.load(golden.weights());
  step.set_documents(batches.packed.first_key, batches.packed.positions);
  CHECK(std::fabs(
            step.forward_backward(batches.packed.tokens, batches.packed.targets, batches.packed.weights()) /
                once.loss -
            1) <= 4 * kRoundoff);
  CHECK(farthest(step.gradients(), once.gradients).distance <= 64 * kRoundoff);
}
