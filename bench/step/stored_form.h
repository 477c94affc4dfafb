// Where the parameters of a model stand in a file of weights: each in a tensor of its own; or as Llama 4's checkpoints have
// them, in which the experts of a layer share two tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/config.h"
#include "models/transformer/layout.h"

namespace precbench {

/// A parameter's part of a tensor in a file.
struct StoredPart {
  std::string name;                  ///< of the tensor
  std::vector<std::int64_t> shape;   ///< of the whole tensor
  std::int64_t first = 0, size = 0;  ///< of a run of elements that has the parameter's, among others'
  std::int64_t offset = 0;           ///< in the run, of row 0 and column 0
  std::int64_t row_stride = 0, column_stride = 0;  ///< between neighbours of the parameter
  std::int64_t head_dim =
      0;  ///< of rows in RoPE's pairs, which are the halves of a head's here; 0: of others

  /// Where an element of the parameter stands in the run.
  std::int64_t at(std::int64_t row, std::int64_t column) const;
  /// values[p.size()] from and to the run.
  void gather(float* values, const float* run, const Parameter& p) const;
  void scatter(float* run, const float* values, const Parameter& p) const;
  /// Whether the run is the parameter as it is.
  bool plain() const { return column_stride == 1 && head_dim == 0; }
};

/// The form of a file's tensors.
class StoredForm {
 public:
  /// `apart`: each parameter has a tensor, whatever model's names they have.
  StoredForm(const ModelConfig& model, bool apart)
      : fused_(!apart && model.moe && model.moe.names == ExpertNames::llama4),
        experts_(model.moe.rule.experts),
        head_dim_(model.head_dim) {}

  /// Llama 4's own.
  bool fused() const { return fused_; }
  StoredPart part_of(const Parameter& p) const;

 private:
  bool fused_;
  std::int64_t experts_, head_dim_;
};

}  // namespace precbench
