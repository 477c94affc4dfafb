// Weights in and out as safetensors under Hugging Face names, so that a step can be reproduced with other
// programs.
#pragma once

#include <string>
#include <vector>

#include "bench/step/rank.h"
#include "bench/step/stored_form.h"
#include "models/checkpoint/safetensors.h"
#include "models/config/config.h"
#include "models/transformer/parallel/parameters.h"

namespace precbench {

/// Standard deviation of freshly initialised matrices.
inline constexpr auto kInitialDeviation = static_cast<float>(kInitializerRange);

/// Weights from a file to start with. Every parameter of the model must be there with its shape. Trained tensors that
/// the model does not use cause a warning: "--init-from: ...". No warning: the head of a tied model if it equals the
/// embedding, and buffers that follow from the model's shape (RoPE frequencies, causal masks). A file with the
/// experts of a layer in one tensor is read as Hugging Face's Llama 4 layout, which also orders the rows of queries
/// and keys differently. Of a multimodal model's file the language model is read.
class InitialWeights {
 public:
  /// Throws InvalidInput naming the missing or misshapen tensor.
  InitialWeights(const std::string& path, const ModelConfig& model);
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Loads the model; adapters stay as they are. May be called from several ranks at once.
  void load_into(Parameters& parameters) const;

 private:
  SafetensorsFile file_;
  StoredForm form_;
  std::vector<std::string> warnings_;
};

class Checkpoint;

/// Sets the weights that a run begins with: a trunk's whole state, a file's weights, or random ones, then
/// changed as the plan says. At most one of `trunk` and `file` is given; the other is null.
void set_first_weights(Rank& rank, const Plan& plan, const Checkpoint* trunk, const InitialWeights* file);

/// Writes weights (from the master, if there is one) or gradients in FP32, in Hugging Face's layout. Of a frozen
/// model these are the adapters, in peft's; beside adapter_model.safetensors also adapter_config.json. A collective:
/// every rank calls it, rank 0 writes. `tokens`: meaning of the token ids (tokens_of_saved()), for the metadata;
/// empty: left out.
void save_weights(const std::string& path, Rank& rank, Parameters::Kind kind, const ModelConfig& model,
                  const std::string& tokens = "");

}  // namespace precbench
