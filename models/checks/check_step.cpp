// Step checks. See check_step.h.
#include "models/checks/check_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/gpu/graph.h"

namespace precbench::checks {
namespace {

constexpr double kRoundoff = 0x1p-24;  // of FP32
constexpr double kBf16Roundoff = 0x1p-9;

/// Returns the root mean square over the tensors of their relative distances.
double mean_distance(const Named& x, const Named& reference) {
  double squares = 0;
  for (const auto& [name, values] : reference) squares += std::pow(distance(x.at(name), values), 2.0);
  return std::sqrt(squares / static_cast<double>(reference.size()));
}

/// Copies the gradients of `from`, which has the same layout, to `to`.
void copy_gradients(TrialStep& to, TrialStep& from) {
  for (int unit = 0; unit < to.parameters().layout().unit_count(); ++unit) {
    const Tensor target = to.parameters().shard(unit).gradient,
                 source = from.parameters().shard(unit).gradient;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(source.bytes()));
    from.device().download(bytes.data(), source);
    to.device().upload(target, bytes.data());
    to.device().synchronize();
  }
}

/// Runs one AdamW step on both from the same gradients. Weights differ by at most a few FP32 roundings of the
/// weight and of an update no larger than about lr.
Finding check_update(const std::string& path, const std::string& what, TrialStep& step, TrialStep& cpu) {
  copy_gradients(cpu, step);
  OptimizerOptions options;
  options.lr = 1e-3f;
  options.max_norm = 0.1f;  // clips
  const double norm = step.update(options), cpu_norm = cpu.update(options);
  const double norm_error = std::fabs(norm / cpu_norm - 1);
  Farthest worst;
  const Named weights = step.weights();
  for (const auto& [name, expected] : cpu.weights())
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double error = std::fabs(weights.at(name)[i] - expected[i]) /
                           (std::fabs(expected[i]) + static_cast<double>(options.lr));
      if (!(error <= worst.distance)) worst = {name, std::isnan(error) ? INFINITY : error};
    }
  return {path, what + ", update",
          fmt::format("{:.1f} FP32 roundings in {}, bound 8; gradient norm {:.1f}, bound 16",
                      worst.distance / kRoundoff, worst.name.empty() ? "every weight" : worst.name,
                      norm_error / kRoundoff),
          worst.distance <= 8 * kRoundoff && norm_error <= 16 * kRoundoff};
}

/// Captures the step as a graph and replays it on the same tokens.
Named replayed(TrialStep& step) {
  const std::unique_ptr<StepGraph> graph = capture_step(step.device(), [&] { step.enqueue(); });
  graph->replay();
  step.device().synchronize();
  return step.gradients();
}

}  // namespace

double random_step(TrialStep& step, const StepSetup& setup) {
  step.parameters().initialize(1, 0.02f);
  if (setup.model.moe && step.parameters().routers()->forced().empty()) step.force_experts(Routing::zipf, 1);
  const std::int64_t n = setup.accumulation * setup.B * setup.T;
  return step.forward_backward(random_tokens(2, n, setup.model.vocab),
                               random_tokens(3, n, setup.model.vocab));
}

Finding check_repetition(const std::string& path, const std::string& what, const Named& first,
                         const Named& again) {
  const std::string differs = first_difference(first, again);
  return {path, what, differs.empty() ? "equal bits" : differs + " differs", differs.empty()};
}

StepChecks::StepChecks(const StepSetup& setup, const std::vector<Recipe>& recipes, int cpu_threads)
    : setup_(setup), threads_(cpu_threads) {
  setup_.reference = true;
  setup_.recipe = find_recipe("bf16");
  {
    TrialStep exact(setup_, make_cpu_device(threads_));
    loss_ = random_step(exact, setup_);
    truth_ = exact.gradients();
  }
  setup_.reference = false;
  // The loss is a mean over M tokens with independent rounding errors, so it can be exact by chance for one
  // recipe. The bound is therefore the largest error of all quantized recipes.
  const double rounding = kBf16Roundoff / std::sqrt(static_cast<double>(setup_.B * setup_.T));
  for (const Recipe& recipe : recipes) {
    setup_.recipe = recipe;
    TrialStep cpu(setup_, make_cpu_device(threads_));
    double& error = recipe.quantized() ? quantized_error_ : bf16_error_;
    error = std::max({error, std::fabs(random_step(cpu, setup_) - loss_), rounding * loss_});
  }
}

Findings StepChecks::check(const Recipe& recipe, const MakeDevice& make_device, const std::string& what) {
  setup_.recipe = recipe;
  TrialStep cpu(setup_, make_cpu_device(threads_));
  random_step(cpu, setup_);
  const Named of_cpu = cpu.gradients();
  TrialStep step(setup_, make_device());
  const double loss = random_step(step, setup_);
  const Named gradients = step.gradients();

  const std::string path = "step " + recipe.name;
  const double loss_bound = 2 * (recipe.quantized() ? quantized_error_ : bf16_error_);
  Findings findings = {{path, what + ", loss",
                        fmt::format("error {:.2e} nats, bound {:.2e}", std::fabs(loss - loss_), loss_bound),
                        std::fabs(loss - loss_) <= loss_bound}};
  Farthest worst;  // relative to its bound
  for (const auto& [name, expected] : truth_) {
    // The CPU's error of few elements, such as a router's biases, may be small by chance: norms of two independent errors of n
    // elements differ by a factor of exp(z / sqrt(n)), z about standard normal.
    const double times = std::max(2.0, std::exp(3 / std::sqrt(static_cast<double>(expected.size()))));
    const double over =
        distance(gradients.at(name), expected) / (times * distance(of_cpu.at(name), expected));
    if (!(over <= worst.distance)) worst = {name, std::isnan(over) ? INFINITY : over};
  }
  findings.push_back({path, what + ", gradients",
                      fmt::format("{} is at {:.2f} of its bound", worst.name, worst.distance),
                      worst.distance <= 1});
  // Both devices make the same rounding errors except for values next to a rounding boundary. Independent
  // errors would put the device sqrt(2) times as far from the CPU as from the truth.
  const double apart = mean_distance(gradients, of_cpu), bound = mean_distance(of_cpu, truth_);
  findings.push_back({path, what + ", gradients beside the CPU's",
                      fmt::format("distance {:.2e}, bound {:.2e}", apart, bound), apart <= bound});
  if (has_graphs(step.device()) && step.device().capturable())
    findings.push_back(check_repetition(path, what + ", replayed graph", gradients, replayed(step)));
  findings.push_back(check_update(path, what, step, cpu));
  return findings;
}

}  // namespace precbench::checks
