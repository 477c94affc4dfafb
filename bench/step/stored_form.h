// Mapping of a model's parameters to the tensors of a weights file. Either each has a tensor of its own, or
// some share one: all experts of a layer in some checkpoints, or what the layout of a family says (tensor_layout.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/config/config.h"
#include "models/config/stored_order.h"
#include "models/config/tensor_layout.h"
#include "models/transformer/state/layout.h"

namespace precbench {

/// Location of a parameter inside a tensor of a file.
struct StoredPart {
  std::string name;                  ///< name of the tensor
  std::vector<std::int64_t> shape;   ///< shape of the whole tensor
  std::int64_t first = 0, size = 0;  ///< run of elements that contains the parameter, perhaps among others
  std::int64_t offset = 0;           ///< of row 0 and column 0, from the start of the run
  std::int64_t row_stride = 0, column_stride = 0;  ///< in elements
  StoredOrder order = {};                          ///< of rows in heads
  bool vector = false;                             ///< the order is of columns instead
  std::int64_t head_rows = 0,
               head_pitch = 0;  ///< rows of a head and from one to the next, unless they are adjacent

  /// Returns the index within the run of an element of the parameter.
  std::int64_t at(std::int64_t row, std::int64_t column) const;
  /// Copies values[p.size()] from the run (gather) or to it (scatter).
  void gather(float* values, const float* run, const Parameter& p) const;
  void scatter(float* run, const float* values, const Parameter& p) const;
  /// Returns true if the run is the parameter itself, in the same order.
  bool plain() const { return column_stride == 1 && order.plain() && head_rows == head_pitch; }
};

/// Tensors of a file. `by_model`: fused as in the model's own checkpoints; `separate`: each parameter has its
/// own tensor, whatever the model. Both have the model's order of queries and keys (stored_order.h), except that separate
/// tensors of a Llama 4 have ours.
enum class StoredTensors : std::uint8_t { by_model, separate };

/// Layout of a file's tensors.
class StoredForm {
 public:
  StoredForm(const ModelConfig& model, StoredTensors tensors)
      : fused_(tensors == StoredTensors::by_model && model.moe &&
               (model.moe.names == ExpertNames::llama4 || model.moe.names == ExpertNames::gpt_oss)),
        layout_(&tensor_layout(tensors == StoredTensors::by_model ? model.block.tensors : "none")),
        model_(model) {}

  /// True for the layouts of Llama 4 and gpt-oss.
  bool fused() const { return fused_; }
  StoredPart part_of(const Parameter& p) const;

 private:
  /// Returns the place of an expert's matrix or bias in a tensor of all experts.
  StoredPart part_of_experts(const Parameter& p, StoredPart part) const;
  /// Returns the place in a checkpoint with a layout of its own (stored_names.cpp).
  StoredPart part_of_layout(const Parameter& p, StoredPart part) const;

  bool fused_;
  const TensorLayout* layout_;
  ModelConfig model_;
};

/// Returns true for tensors that only a checkpoint with a layout of its own has.
bool is_named_tensor(std::string_view name);

}  // namespace precbench
