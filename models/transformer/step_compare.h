// Comparison of two whole steps, for tests.
#pragma once

#include "models/transformer/step_testing.h"

namespace precbench::testing {

struct Result {
  double loss;
  Named gradients;
};

struct Likeness {
  double cosine, norm_ratio;
};

inline Likeness compare(const std::vector<float>& x, const std::vector<float>& reference) {
  double dot = 0, x2 = 0, reference2 = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    dot += static_cast<double>(x[i]) * reference[i];
    x2 += static_cast<double>(x[i]) * x[i];
    reference2 += static_cast<double>(reference[i]) * reference[i];
  }
  return {dot / std::sqrt(x2 * reference2), std::sqrt(x2 / reference2)};
}

/// Runs a step on random weights and tokens, the same for every setup of one size.
inline Result random_step(const StepSetup& setup, std::unique_ptr<Device> device = make_cpu_device(1)) {
  TestStep step(setup, std::move(device));
  step.parameters().initialize(1, 0.02f);
  const std::int64_t n = setup.accumulation * setup.B * setup.T;
  const double loss =
      step.forward_backward(random_tokens(2, n, setup.model.vocab), random_tokens(3, n, setup.model.vocab));
  return {loss, step.gradients()};
}

/// Checks that a step with each kind of recomputation has the bits of `kept`, the step without any.
inline void check_recomputed(StepSetup setup, const Result& kept,
                             std::span<const RecomputeKind> kinds = kRecomputeKinds) {
  for_each_recompute(setup, kinds, [&] {
    const Result again = random_step(setup);
    CHECK(again.loss == kept.loss);
    CHECK(first_difference(again.gradients, kept.gradients) == "");
  });
}

/// Checks relative differences; `of_gradient` applies to every tensor.
inline void check_close(const Result& x, const Result& reference, double of_loss, double of_gradient) {
  CHECK(std::fabs(x.loss / reference.loss - 1) <= of_loss);
  const Farthest gradient = farthest(x.gradients, reference.gradients);
  INFO(gradient.name);
  CHECK(gradient.distance <= of_gradient);
}

}  // namespace precbench::testing
