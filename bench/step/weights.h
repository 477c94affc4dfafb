// Weights in and out as safetensors under Hugging Face names, so that anyone can repeat a step elsewhere.
#pragma once

#include <string>
#include <vector>

#include "bench/step/rank.h"
#include "bench/step/stored_form.h"
#include "models/checkpoint/safetensors.h"
#include "models/config/config.h"
#include "models/transformer/parameters.h"

namespace precbench {

/// Standard deviation of freshly initialised matrices.
inline constexpr auto kInitialDeviation = static_cast<float>(kInitializerRange);

/// A checkpoint to start from: every parameter of the model must be there with its shape; tensors that the
/// model has no use for (a tied lm_head) become a warning. One with Llama 4's experts of a layer in one tensor is taken for
/// Hugging Face's, whose queries and keys are in another order too.
class InitialWeights {
 public:
  /// Throws InvalidInput naming what is missing or misshapen.
  InitialWeights(const std::string& path, const ModelConfig& model);
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// May be called from several ranks at once.
  void load_into(Parameters& parameters) const;

 private:
  SafetensorsFile file_;
  StoredForm form_;
  std::vector<std::string> warnings_;
};

class Checkpoint;

/// What a run begins with: a trunk's whole state, weights of a file, or drawn ones, changed as the plan says. Of trunk and
/// file at most one is there; the others are null.
void set_first_weights(Rank& rank, const Plan& plan, const Checkpoint* trunk, const InitialWeights* file);

/// Writes weights (of the master, where there is one) or gradients in FP32, in Hugging Face's form. A collective: every rank
/// calls it, rank 0 writes.
void save_weights(const std::string& path, Rank& rank, Parameters::Kind kind, const ModelConfig& model);

}  // namespace precbench
