// A step on one and two ranks, in every sharding, against Hugging Face's own models with the same weights and
// tokens. Covers RoPE beyond the original context and sharded biases.
#include <algorithm>

#include "bench/predict/predict.h"
#include "bench/step/rank_testing.h"
#include "models/transformer/step_golden.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Returns a golden's sequences in order.
class GoldenData final : public DataSource {
 public:
  explicit GoldenData(const Golden& golden) : golden_(golden) {}
  std::int64_t vocab() const override { return golden_.model.vocab; }
  std::optional<double> entropy_nats() const override { return std::nullopt; }
  std::int64_t skipped() const override { return 0; }
  std::int64_t sequences(std::int64_t T) const override {
    return static_cast<std::int64_t>(golden_.tokens.size()) / T;
  }
  void sequence(std::uint64_t index, std::int64_t T, std::int32_t* out) const override {
    const auto first = golden_.tokens.begin() + static_cast<std::ptrdiff_t>(index) * T;
    std::copy(first, first + T, out);
    out[T] = golden_.targets[(index + 1) * static_cast<std::size_t>(T) - 1];
  }
  std::string describe() const override { return "a golden step"; }

 private:
  const Golden& golden_;
};

Plan plan_of(const Golden& golden, int ranks, const char* parallel, int ep = 1) {
  Case c;
  if (golden.model.moe) c.model = "tiny-moe", c.aux = 0;
  c.ep = ep;
  c.gpus = ranks;
  c.parallel = parallel;
  c.batch = golden.B / ranks;
  c.seq = golden.T;
  Plan plan = validate(c);
  plan.model = golden.model;
  plan.converted.assign(static_cast<std::size_t>(plan.model.layers), ConvertedLayers::Roles{});
  plan.optimizer = golden.optimizer;
  return plan;
}

StepOutcome step_of(Rank& rank, const Golden& golden) {
  const Named weights = golden.weights();
  rank.parameters().load([&](const Parameter& p, float* values) {
    std::copy(weights.at(p.name).begin(), weights.at(p.name).end(), values);
  });
  rank.prepare(GoldenData(golden), 0, 0);
  rank.enqueue();
  const StepResult result = rank.finish();
  return {result.loss, result.grad_norm, saved(rank.parameters(), Parameters::Kind::gradients),
          saved(rank.parameters(), Parameters::Kind::weights)};
}

struct RankSetting {
  int ranks;
  const char* parallel;
};
constexpr RankSetting kSettings[] = {{1, "ddp"}, {2, "ddp"}, {2, "fsdp"}};

/// Concatenates all tensors of a set.
std::vector<float> joined(const Named& tensors) {
  std::vector<float> all;
  for (const auto& [name, values] : tensors) all.insert(all.end(), values.begin(), values.end());
  return all;
}

/// The 2x rule: at most twice as far from the plain step as PyTorch with the bf16 recipe's roundings. The two
/// scalars have a minimum tolerance for such roundings.
void check_twice(const Golden& golden, const StepOutcome& outcome) {
  const auto scalar = [&](const std::string& name) { return static_cast<double>(golden.values(name)[0]); };
  const double tokens = static_cast<double>(golden.B * golden.T);
  const double loss = scalar("loss"), rounding = 0x1p-9 / std::sqrt(tokens) * loss;
  CHECK(std::fabs(outcome.loss - loss) <= 2 * std::max(std::fabs(scalar("bf16.loss") - loss), rounding));
  const double norm = scalar("grad_norm");
  CHECK(std::fabs(outcome.grad_norm - norm) <=
        2 * std::max(std::fabs(scalar("bf16.grad_norm") - norm), 1e-3 * norm));
  const Named plain = golden.all("grad."), rounded = golden.all("bf16.grad.");
  for (const auto& [name, expected] : plain) {
    INFO(name);
    CHECK(distance(outcome.gradients.at(name), expected) <= 2 * distance(rounded.at(name), expected));
  }
  // Gradients near 0 whose sign the roundings flip move their weights the other way: n flips of N give 2
  // sqrt(n / N). Roundings of 1.2e-2, independent of the golden's, would flip a share atan(1.2e-2) / pi of
  // the signs, which gives 0.12; measured on an H200: 0.057.
  CHECK(distance(joined(update(golden, "bf16.", outcome.weights)),
                 joined(update(golden, "bf16.", golden.all("bf16.after.")))) <= 0.1);
}

/// Runs a golden step on CPU ranks and checks what each returns. Ranks that divide the experts round sums of rows for
/// transport, which the golden does not.
void check_cpu_ranks(const char* name, int ranks, const char* parallel, int ep) {
  INFO(name << " on " << ranks << ", " << parallel << ", ep " << ep);
  const Golden golden(PRECBENCH_SOURCE_DIR "/models/transformer/golden", name);
  const Plan plan = plan_of(golden, ranks, parallel, ep);
  std::vector<StepOutcome> outcomes(static_cast<std::size_t>(ranks));
  const std::int64_t bytes = dry_run(plan, nullptr).extent + watching_bytes(plan);
  run_cpu_ranks(plan, bytes, [&](Rank& rank, const DataSource&) {
    outcomes[static_cast<std::size_t>(rank.comm().rank())] = step_of(rank, golden);
  });
  for (const StepOutcome& outcome : outcomes)
    ep > 1 ? check_twice(golden, outcome) : check_bf16_step(golden, outcome);
}

}  // namespace

TEST_CASE("Rank: a step on one and two CPU ranks matches Hugging Face", "[rank]") {
  for (const char* name :
       {"llama3.2", "qwen2.5", "llama-biases", "qwen3-biases", "glm4", "exaone4", "gpt2", "gpt-neox", "phi",
        "nemotron-biases", "cohere", "deepseek-v2-lite", "deepseek-v3", "gpt-oss"})
    for (const auto& [ranks, parallel] : kSettings) check_cpu_ranks(name, ranks, parallel, 1);
  for (const char* parallel : {"ddp", "fsdp"}) check_cpu_ranks("gpt-oss", 2, parallel, 2);
}

TEST_CASE("Rank: a step of Llama 3.2 and Qwen2.5 on one and two GPUs matches Hugging Face", "[gpu][rank]") {
  const int gpus = find_gpus().count;
  if (gpus == 0) WARN("skipped: " << find_gpus().reason);
  for (const char* name : {"llama3.2", "qwen2.5"})
    for (const auto& [ranks, parallel] : kSettings) {
      if (ranks > gpus) continue;
      INFO(name << " on " << ranks << ", " << parallel);
      const Golden golden(PRECBENCH_SOURCE_DIR "/models/transformer/golden", name);
      Plan plan = plan_of(golden, ranks, parallel);
      plan.on_gpu = true;
      std::vector<StepOutcome> outcomes(static_cast<std::size_t>(ranks));
      on_gpus(ranks, [&](int index, Device& device, Comm& comm) {
        const std::int64_t bytes = dry_run(plan, &device).extent + watching_bytes(plan);
        const DeviceBlock block(device, bytes);
        Rank rank(device, comm, plan, block.data(), bytes);
        outcomes[static_cast<std::size_t>(index)] = step_of(rank, golden);
      });
      for (const StepOutcome& outcome : outcomes) check_twice(golden, outcome);
    }
}
