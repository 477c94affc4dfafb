// A step on one and two ranks, however they share the model, against what Hugging Face's own models make of the same
// weights and tokens: RoPE beyond the original context, and biases that are sharded.
#include <algorithm>

#include "bench/predict.h"
#include "bench/rank_testing.h"
#include "models/step_golden.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// A golden's sequences, in their order.
class GoldenData final : public DataSource {
 public:
  explicit GoldenData(const Golden& golden) : golden_(golden) {}
  std::int64_t vocab() const override { return golden_.model.vocab; }
  std::optional<double> entropy_nats() const override { return std::nullopt; }
  std::int64_t skipped() const override { return 0; }
  void sequence(std::uint64_t index, std::int64_t T, std::int32_t* out) const override {
    const auto first = golden_.tokens.begin() + static_cast<std::ptrdiff_t>(index) * T;
    std::copy(first, first + T, out);
    out[T] = golden_.targets[(index + 1) * static_cast<std::size_t>(T) - 1];
  }
  std::string describe() const override { return "a golden step"; }

 private:
  const Golden& golden_;
};

Plan plan_of(const Golden& golden, int ranks, const char* parallel) {
  Case c;
  c.gpus = ranks;
  c.parallel = parallel;
  c.batch = golden.B / ranks;
  c.seq = golden.T;
  Plan plan = make_plan(c);
  plan.model = golden.model;
  plan.converted.assign(static_cast<std::size_t>(plan.model.layers), false);
  plan.optimizer = golden.optimizer;
  return plan;
}

}  // namespace

TEST_CASE("a step of Hugging Face's Llama 3.2 and Qwen2.5 on one and two ranks is theirs", "[rank]") {
  for (const char* name : {"llama3.2", "qwen2.5"})
    for (const auto& [ranks, parallel] : {std::pair{1, "ddp"}, {2, "ddp"}, {2, "fsdp"}}) {
      INFO(name << " on " << ranks << ", " << parallel);
      const Golden golden(PRECBENCH_SOURCE_DIR "/models/golden", name);
      const Plan plan = plan_of(golden, ranks, parallel);
      const GoldenData data(golden);
      std::vector<StepOutcome> outcomes(static_cast<std::size_t>(ranks));
      const std::int64_t bytes = dry_run(plan, nullptr).extent + watching_bytes(plan);
      run_cpu_ranks(plan, bytes, [&](Rank& rank, const DataSource&) {
        StepOutcome& outcome = outcomes[static_cast<std::size_t>(rank.comm().rank())];
        const Named weights = golden.all("");
        rank.parameters().load([&](const Parameter& p, float* values) {
          std::copy(weights.at(p.name).begin(), weights.at(p.name).end(), values);
        });
        rank.prepare(data, 0, 0);
        rank.enqueue();
        const StepResult result = rank.finish();
        outcome = {result.loss, result.grad_norm, saved(rank.parameters(), Parameters::Kind::gradients),
                   saved(rank.parameters(), Parameters::Kind::weights)};
      });
      for (const StepOutcome& outcome : outcomes) check_bf16_step(golden, outcome);
    }
}
