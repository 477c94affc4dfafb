// Mapping of a model's parameters to the tensors of a weights file. Either each has a tensor of its own, or,
// as in Llama 4's checkpoints, all experts of a layer share two tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/config.h"
#include "models/transformer/state/layout.h"

namespace precbench {

/// Location of a parameter inside a tensor of a file.
struct StoredPart {
  std::string name;                  ///< name of the tensor
  std::vector<std::int64_t> shape;   ///< shape of the whole tensor
  std::int64_t first = 0, size = 0;  ///< run of elements that contains the parameter, perhaps among others
  std::int64_t offset = 0;           ///< of row 0 and column 0, from the start of the run
  std::int64_t row_stride = 0, column_stride = 0;  ///< in elements
  std::int64_t head_dim = 0;  ///< if rows are in RoPE pairs in the file, in halves of a head here; else 0

  /// Returns the index within the run of an element of the parameter.
  std::int64_t at(std::int64_t row, std::int64_t column) const;
  /// Copies values[p.size()] from the run (gather) or to it (scatter).
  void gather(float* values, const float* run, const Parameter& p) const;
  void scatter(float* run, const float* values, const Parameter& p) const;
  /// Returns true if the run is the parameter itself, in the same order.
  bool plain() const { return column_stride == 1 && head_dim == 0; }
};

/// Tensors of the experts in a file. `by_model`: fused if the model has Llama 4's names; `separate`: each
/// parameter has its own tensor, whatever the names.
enum class ExpertTensors : std::uint8_t { by_model, separate };

/// Layout of a file's tensors.
class StoredForm {
 public:
  StoredForm(const ModelConfig& model, ExpertTensors tensors)
      : fused_(tensors == ExpertTensors::by_model && model.moe && model.moe.names == ExpertNames::llama4),
        experts_(model.moe.rule.experts),
        head_dim_(model.head_dim) {}

  /// True for Llama 4's own layout.
  bool fused() const { return fused_; }
  StoredPart part_of(const Parameter& p) const;

 private:
  bool fused_;
  std::int64_t experts_, head_dim_;
};

}  // namespace precbench
