// Six steps of every optimizer against the goldens of tools/goldens/make_optimizer_goldens.py, on the CPU and
// on a GPU.
#include "models/transformer/optimizer/optimizers.h"

#include <nlohmann/json.hpp>

#include "kernels/gpu/gpu_testing.h"
#include "models/transformer/golden_testing.h"
#include "models/transformer/step_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr float kScale = 0.2f;

/// Returns the golden script's uniform numbers in [-0.5, 0.5), times kScale.
std::vector<float> hashed(std::uint64_t seed, std::int64_t size) {
  std::vector<float> values(size);
  for (std::int64_t i = 0; i < size; ++i) {
    std::uint64_t x =
        (static_cast<std::uint64_t>(i) * 2654435761u + seed * 2246822519u + 374761393u) & 0xFFFFFFFFu;
    x ^= x >> 15;
    x = (x * 2246822519u) & 0xFFFFFFFFu;
    x ^= x >> 13;
    values[i] = kScale * static_cast<float>(static_cast<double>(x >> 8) / 0x1p24 - 0.5);
  }
  return values;
}

struct Goldens {
  SafetensorsFile file = open_golden(PRECBENCH_SOURCE_DIR "/models/transformer/golden/optimizers.safetensors");
  ModelConfig model = model_from_json(nlohmann::json::parse(file.metadata().at("model")));
  int steps = std::stoi(file.metadata().at("steps"));
  double rate(const std::string& optimizer) const {
    return nlohmann::json::parse(file.metadata().at("rates")).at(optimizer);
  }
  /// Returns values of every parameter. A tensor's seed is `seed` plus its index in the sorted names.
  Named random(std::uint64_t seed) const {
    Named all;
    const Layout layout(model, 1);
    for (const Unit& unit : layout.units())
      for (const Parameter& p : unit.parameters) all[p.name].resize(p.size());
    for (auto& [name, values] : all) values = hashed(seed++, static_cast<std::int64_t>(values.size()));
    return all;
  }
  Named weights(const std::string& prefix) const {
    Named all = random(0);
    for (auto& [name, values] : all) copy_to_f32(values.data(), file.at(prefix + "." + name));
    return all;
  }
};

void set_gradients(TestStep& step, const Named& gradients) {
  Parameters& parameters = step.parameters();
  for (int u = 0; u < parameters.layout().unit_count(); ++u)
    for (const Piece& piece : parameters.layout().pieces(u, 0))
      step.device().upload(parameters.shard(u).gradient.elements(piece.offset, piece.count),
                           gradients.at(piece.parameter->name).data());
}

Named trained(const Goldens& goldens, const OptimizerSpec& optimizer, std::unique_ptr<Device> device) {
  TestStep step({.model = goldens.model, .optimizer = &optimizer}, std::move(device));
  step.load(goldens.random(0));
  OptimizerOptions options;
  options.optimizer = &optimizer;
  options.lr = static_cast<float>(goldens.rate(optimizer.name));
  const OptimizerConstants& own = optimizer.constants;
  options.beta1 = static_cast<float>(own.beta1.value_or(0));
  options.beta2 = static_cast<float>(own.beta2.value_or(0));
  options.eps = static_cast<float>(own.eps.value_or(0));
  options.momentum = static_cast<float>(own.momentum.value_or(0));
  for (int i = 0; i < goldens.steps; ++i) {
    set_gradients(step, goldens.random(1000 * (i + 1)));
    CHECK(step.update(options, i) > options.max_norm);  // so it clips
  }
  return step.weights();
}

/// Returns the change of the weights.
Named change(const Named& after, const Named& before) {
  Named difference = after;
  for (auto& [name, values] : difference)
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= before.at(name)[i];
  return difference;
}

void check_goldens(const std::function<std::unique_ptr<Device>()>& make_device) {
  const Goldens goldens;
  const Named before = goldens.random(0);
  for (const OptimizerSpec& optimizer : optimizers()) {
    const std::string name = optimizer.name;
    INFO(name);
    const Named ours = change(trained(goldens, optimizer, make_device()), before);
    const Named theirs = change(goldens.weights(name), before);
    if (name != "muon") {
      // Weights are 100 times their change and are rounded at every step. Measured 3e-6.
      const Farthest off = farthest(ours, theirs);
      INFO(off.name);
      CHECK(off.distance <= 1e-5);
      continue;
    }
    // Both iterate in BF16, which causes errors of 1e-2. Ours may be 1.5 times PyTorch's own.
    const Named exact = change(goldens.weights("muon64"), before);
    for (const auto& [parameter, want] : exact) {
      INFO(parameter);
      CHECK(distance(ours.at(parameter), want) <= std::max(2e-5, 1.5 * distance(theirs.at(parameter), want)));
    }
  }
}

}  // namespace

TEST_CASE("optimizer_step: six steps of every optimizer match PyTorch or the authors' formulas",
          "[optimizer]") {
  check_goldens([] { return make_cpu_device(2); });
}

TEST_CASE("optimizer_step on a GPU: six steps of every optimizer match PyTorch or the authors' formulas",
          "[gpu][optimizer]") {
  if (!gpu_here()) return;
  check_goldens([] { return make_gpu_device(0); });
}

TEST_CASE("step_scalars: bias corrections are those that each optimizer reads", "[optimizer]") {
  OptimizerOptions o;
  o.lr = 0.5f;
  CHECK(step_scalars(o, 0).bias_correction1 == static_cast<float>(1 - static_cast<double>(o.beta1)));
  o.optimizer = &optimizer_named("adafactor");
  const StepScalars first = step_scalars(o, 0), hundredth = step_scalars(o, 99);
  CHECK((first.bias_correction1 == 0.5f && first.bias_correction2 == 1.0f));
  CHECK(hundredth.bias_correction1 == 0.1f);  // 1 / sqrt(100)
  CHECK(std::fabs(hundredth.bias_correction2 - std::pow(100.0, -0.8)) < 1e-8);
  CHECK(step_scalars(o, 0, 99).bias_correction2 == hundredth.bias_correction2);
}

TEST_CASE("learning_rate: cosine decays to a tenth, linear to zero, both after warmup", "[optimizer]") {
  OptimizerOptions o;
  o.lr = 0.5f, o.warmup = 4, o.total_steps = 14;
  for (const Schedule schedule : {Schedule::constant, Schedule::cosine, Schedule::linear}) {
    o.schedule = schedule;
    CHECK(learning_rate(o, 0) == 0.125f);
    CHECK(learning_rate(o, 3) == 0.5f);
    CHECK(learning_rate(o, 4) == 0.5f);
  }
  o.schedule = Schedule::linear;
  CHECK(learning_rate(o, 9) == 0.25f);
  CHECK(std::fabs(learning_rate(o, 13) - 0.05f) < 1e-7f);  // the last step still learns
  CHECK(learning_rate(o, 14) == 0.0f);
  CHECK(learning_rate(o, 99) == 0.0f);
  o.schedule = Schedule::cosine;
  CHECK(std::fabs(learning_rate(o, 9) - 0.275f) < 1e-7f);
  CHECK(std::fabs(learning_rate(o, 14) - 0.05f) < 1e-7f);
  o.schedule = Schedule::constant;
  CHECK(learning_rate(o, 99) == 0.5f);
}
