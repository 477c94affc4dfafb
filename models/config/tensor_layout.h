// Layouts of checkpoints whose tensors are not named and split as a model's parameters are here. Rows of families.json.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace precbench {

/// A layout. If `modules` has "self_attn.qkv_proj", q, k and v are rows of one tensor, and likewise gate and up if it has
/// "mlp.gate_up_proj".
struct TensorLayout {
  std::string name = "none";
  bool gated = true;                   ///< of models whose feed-forward network has a gate
  std::string blocks = {};             ///< in place of "model.layers."; empty: the same
  bool transposed = false;             ///< matrices of blocks are [in, out]
  bool by_head = false;                ///< q, k and v of one head, then those of the next
  std::vector<std::string> only = {};  ///< ends of tensor names that no other layout has
  std::map<std::string, std::string, std::less<>> modules = {};  ///< from our name to the checkpoint's

  /// Returns the checkpoint's name of a module, or null if it has ours.
  const std::string* module(std::string_view ours) const {
    const auto found = modules.find(ours);
    return found == modules.end() ? nullptr : &found->second;
  }
  bool operator==(const TensorLayout&) const = default;
};

/// Returns the layouts; the first is "none", with a tensor for each parameter under our name.
const std::vector<TensorLayout>& tensor_layouts();
/// Returns a layout by its name; "none" if there is no other.
const TensorLayout& tensor_layout(std::string_view name);

}  // namespace precbench
