// Golden steps of tools/goldens/make_step_goldens.py and make_moe_goldens.py for tests: a model, its weights
// and tokens, and the results of PyTorch or of Hugging Face's own model.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "models/config/stored_order.h"
#include "models/transformer/golden_testing.h"
#include "models/transformer/optimizer/optimizer.h"
#include "models/transformer/step_testing.h"

namespace precbench::testing {

/// From llama3.2 on they come from a config.json. In llama3.2 and qwen2.5 three quarters of the positions lie beyond
/// the original context length.
inline constexpr const char* kGoldenSteps[] = {"llama",
                                               "tied",
                                               "qwen3",
                                               "llama3.2",
                                               "qwen2.5",
                                               "ministral3",
                                               "smollm3",
                                               "granite",
                                               "olmo2",
                                               "phi3",
                                               "gemma",
                                               "gemma2",
                                               "gemma3",
                                               "mistral",
                                               "qwen2",
                                               "olmo3",
                                               "llama-biases",
                                               "qwen3-biases",
                                               "phi4-mini",
                                               "seed-oss",
                                               "glm",
                                               "glm4",
                                               "ernie4.5",
                                               "exaone4",
                                               "gpt2",
                                               "gpt-bigcode",
                                               "gpt-j",
                                               "gpt-neox",
                                               "gpt-neox-sequential",
                                               "phi",
                                               "starcoder2",
                                               "stablelm",
                                               "stablelm-parallel",
                                               "nemotron",
                                               "nemotron-biases",
                                               "cohere",
                                               "cohere2",
                                               "cwm",
                                               "granite-hybrid",
                                               "exaone3",
                                               "hunyuan"};
/// Golden steps of MoE models.
inline constexpr const char* kGoldenMixtures[] = {
    "mixtral",      "qwen3-moe",        "olmoe",       "llama4",      "llama4-scout",
    "qwen2-moe",    "deepseek-v3-like", "glm4-moe",    "minimax-m2",  "ernie4.5-moe",
    "deepseek-moe", "deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "deepseek-v3-halves",
    "gpt-oss",      "glm4-moe-lite",    "dots1",       "solar-open"};

/// One golden step.
struct Golden {
  Golden(const std::string& folder, const std::string& name)
      : file(open_golden(folder + "/step_" + name + ".safetensors")) {
    const auto config = nlohmann::json::parse(file.metadata().at("config"));
    const auto adamw = nlohmann::json::parse(file.metadata().at("optimizer"));
    model = model_from_json(config);
    optimizer.lr = adamw.at("lr");
    optimizer.beta1 = adamw.at("beta1");
    optimizer.beta2 = adamw.at("beta2");
    optimizer.eps = adamw.at("eps");
    optimizer.weight_decay = adamw.at("weight_decay");
    optimizer.max_norm = adamw.at("max_norm");
    if (const auto bounds = file.metadata().find("bf16_bounds"); bounds != file.metadata().end())
      bf16_bounds = nlohmann::json::parse(bounds->second).get<std::map<std::string, double>>();
    const StoredTensor& stored = file.at("tokens");
    B = stored.shape.at(0), T = stored.shape.at(1) - 1;
    std::vector<std::int32_t> all(stored.size());
    std::memcpy(all.data(), stored.data, stored.bytes);
    for (std::int64_t b = 0; b < B; ++b) {
      const auto row = all.begin() + b * (T + 1);
      tokens.insert(tokens.end(), row, row + T);
      targets.insert(targets.end(), row + 1, row + T + 1);
    }
  }

  std::vector<float> values(const std::string& name) const {
    const StoredTensor& stored = file.at(name);
    std::vector<float> result(stored.size());
    copy_to_f32(result.data(), stored);
    return result;
  }
  /// Returns the tensors of all parameters under `prefix`.
  Named all(const std::string& prefix) const {
    Named result;
    const Layout layout(model, 1);
    for (const Unit& unit : layout.units())
      for (const Parameter& p : unit.parameters) result[p.name] = ordered(p, values(prefix + p.name));
    return result;
  }

  /// Returns a parameter's values, or gradient, whose heads have a checkpoint's order, in ours.
  std::vector<float> ordered(const Parameter& p, const std::vector<float>& stored) const {
    const StoredOrder order = stored_order(model, p.name);
    const bool matrix = p.kind == ParameterKind::matrix;
    const std::int64_t size = matrix ? p.cols : 1, rows = p.size() / size;
    std::vector<float> result(stored.size());
    for (std::int64_t row = 0; row < rows; ++row)
      std::copy_n(stored.begin() + order.stored(row) * size, size, result.begin() + row * size);
    return result;
  }

  /// Returns the initial parameters and the routers' biases.
  Named weights() const {
    Named result = all("");
    const Layout layout(model, 1);
    for (const Parameter& p : layout.buffers()) result[p.name] = values(p.name);
    return result;
  }

  SafetensorsFile file;
  ModelConfig model;
  OptimizerOptions optimizer;
  std::int64_t B = 0, T = 0;
  std::vector<std::int32_t> tokens, targets;
  std::map<std::string, double> bf16_bounds;  ///< empty in files without them
};

/// Relative errors of a step against a golden one. `update`: error of the weight change.
struct Errors {
  double loss = 0, grad_norm = 0;
  Farthest gradient, update;
};

/// Returns the weight changes of a step, without elements that say nothing. AdamW's first step is lr times
/// the sign of a gradient well above eps; near eps it multiplies the gradient's error by up to 1 / eps, so
/// elements below 200 eps are left out. So are those whose sign BF16 rounding decides, where it moves the
/// gradient by half of its value or more.
inline Named update(const Golden& golden, const std::string& prefix, const Named& after) {
  Named result;
  const Named gradients = golden.all(prefix + "grad."), plains = golden.all("grad.");
  for (const auto& [name, before] : golden.all("")) {
    const std::vector<float>&gradient = gradients.at(name), &plain = plains.at(name);
    std::vector<float>& change = result[name];
    for (std::size_t i = 0; i < before.size(); ++i)
      if (std::fabs(gradient[i]) > 200 * golden.optimizer.eps &&
          std::fabs(gradient[i] - plain[i]) < 0.5f * std::fabs(gradient[i]))
        change.push_back(after.at(name)[i] - before[i]);
    if (change.empty()) result.erase(name);
  }
  return result;
}

/// Results of a step on a golden's weights and tokens.
struct StepOutcome {
  double loss = 0, grad_norm = 0;
  Named gradients, weights;
};

/// Runs a whole step on the tokens of a golden and returns its results. The weights are loaded.
template <class AnyGolden>
StepOutcome outcome_of(TestStep& step, const AnyGolden& golden) {
  StepOutcome outcome;
  outcome.loss = step.forward_backward(golden.tokens, golden.targets);
  outcome.gradients = step.gradients();
  outcome.grad_norm = step.update(golden.optimizer);
  outcome.weights = step.weights();
  return outcome;
}

/// Runs the step on one rank, from the golden's weights unless others are given.
inline StepOutcome run_step(const Golden& golden, bool reference,
                            std::unique_ptr<Device> device = make_cpu_device(1),
                            const Named* weights = nullptr) {
  TestStep step({.model = golden.model, .B = golden.B, .T = golden.T, .reference = reference},
                std::move(device));
  step.load(weights ? *weights : golden.weights());
  return outcome_of(step, golden);
}

/// Adds the gradient of queries' biases to both gradients of keys' biases whose expected norm is below a quarter of it. The
/// latter cancel, without RoPE to 0 and with partial RoPE in most elements, so their errors are measured by theirs.
inline void measure_by_queries(Named& gradients, Named& expected) {
  for (auto& [name, values] : expected) {
    if (!name.ends_with("self_attn.k_proj.bias")) continue;
    std::string queries = name;
    queries.replace(queries.find("k_proj"), 1, "q");
    const std::vector<float>& scale = expected.at(queries);
    const auto squares = [](const std::vector<float>& v) {
      return std::inner_product(v.begin(), v.end(), v.begin(), 0.0);
    };
    if (16 * squares(values) >= squares(scale)) continue;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += scale[i], gradients.at(name)[i] += scale[i];
  }
}

/// `prefix`: "" for the plain step, "bf16." for the one that rounds like the bf16 recipe.
inline Errors errors_of(const Golden& golden, const std::string& prefix, const StepOutcome& outcome) {
  const double loss = golden.values(prefix + "loss")[0], norm = golden.values(prefix + "grad_norm")[0];
  Errors errors;
  errors.loss = std::fabs(outcome.loss - loss) / loss;
  Named gradients = outcome.gradients, expected = golden.all(prefix + "grad.");
  measure_by_queries(gradients, expected);
  errors.gradient = farthest(gradients, expected);
  errors.grad_norm = std::fabs(outcome.grad_norm - norm) / norm;
  errors.update = farthest(update(golden, prefix, outcome.weights),
                           update(golden, prefix, golden.all(prefix + "after.")));
  return errors;
}

/// Compares an FP32 step with PyTorch's in FP64.
inline void check_fp32_step(const Golden& golden, const StepOutcome& outcome) {
  const Errors errors = errors_of(golden, "", outcome);
  // Sums over many elements. Measured 1.3 unit roundoffs for the loss; for the norm 2.9 (Llama 4), and 5.1 in
  // the AddressSanitizer build, which adds in another order.
  CHECK(errors.loss <= 4 * kRoundoff);
  CHECK(errors.grad_norm <= 8 * kRoundoff);
  // Measured 20: backward chains about 20 ops per block, each with a few roundings, which add up like a
  // random walk. A wrong term or index costs 1e-2 or more.
  INFO(errors.gradient.name);
  CHECK(errors.gradient.distance <= 64 * kRoundoff);
  // Measured 210: elements of 200 eps amplify their gradient's absolute error by 2.5e3 / max |g|.
  INFO(errors.update.name);
  CHECK(errors.update.distance <= 512 * kRoundoff);
}

/// Compares a BF16 step with PyTorch's with the same roundings. A few of the 1e5 values of a step round to
/// the other neighbour, because our FP32 sums differ from FP64 sums; each is an error of 2^-8 that
/// propagates. Measured: 1e-6 in tied and llama3.2, which have none; at most 1.2e-5 (loss), 4.7e-5 (norm),
/// 2.7e-3 (gradients) in the others. For scale: rounding itself moves the gradients by 1.2e-2 and the norm by
/// 1e-3, and a bias of k, whose gradient nearly cancels, by 2.6e-2 (our error there: 6.5e-3). Files from
/// gemma on have their own bounds, from such errors of PyTorch itself over many seeds.
inline void check_bf16_step(const Golden& golden, const StepOutcome& outcome) {
  const Errors errors = errors_of(golden, "bf16.", outcome);
  const auto bound = [&](const std::string& name, double otherwise) {
    return golden.bf16_bounds.empty() ? otherwise : golden.bf16_bounds.at(name);
  };
  CHECK(errors.loss <= bound("loss", 3e-5));
  CHECK(errors.grad_norm <= bound("grad_norm", 1e-4));
  Named gradients = outcome.gradients, rounded = golden.all("bf16.grad.");
  const Named plain = golden.all("grad."), unmeasured = rounded;
  if (!golden.bf16_bounds.empty()) measure_by_queries(gradients, rounded);
  const Named changes = update(golden, "bf16.", outcome.weights),
              expected_changes = update(golden, "bf16.", golden.all("bf16.after."));
  for (const auto& [name, expected] : rounded) {
    INFO(name);
    // A gradient that is measured by that of the queries has its bound too.
    std::string bounded = name;
    if (expected != unmeasured.at(name)) bounded.replace(bounded.find("k_proj"), 1, "q");
    const double apart = golden.bf16_bounds.empty() ? 0.3 * distance(unmeasured.at(name), plain.at(name))
                                                    : golden.bf16_bounds.at("grad." + bounded);
    CHECK(distance(gradients.at(name), expected) <= std::max(5e-3, apart));
    if (!changes.count(name)) continue;
    // A gradient near 0 that changes sign moves its weight by 2 lr in the other direction: n of N elements give
    // 2 sqrt(n / N). Measured 0.032, 1 of 4096. Where bounds were measured, one element may flip that never did.
    const double one = golden.bf16_bounds.empty() ? 0 : 2.1 / std::sqrt(changes.at(name).size());
    CHECK(distance(changes.at(name), expected_changes.at(name)) <=
          std::max({0.05, one, bound("update." + name, 0.05)}));
  }
}

}  // namespace precbench::testing
