// Tensors under a layout of their own, as the rows of families say: other names, q, k and v or gate and up in one tensor, one head
// after the other in it, or matrices [in, out]. See stored_form.h and tensor_layout.h.
#include <algorithm>
#include <array>

#include "bench/step/stored_form.h"

namespace precbench {
namespace {

constexpr std::string_view kBlocks = "model.layers.";

/// A parameter's name in parts: "model.layers.3." or nothing, "mlp.up_proj", ".bias".
struct NameParts {
  std::string_view block, module, which;

  explicit NameParts(std::string_view name) {
    const std::size_t last = name.rfind('.');
    which = name.substr(last);
    const std::size_t begin = name.starts_with(kBlocks) ? name.find('.', kBlocks.size()) + 1 : 0;
    block = name.substr(0, begin);
    module = name.substr(begin, last - begin);
  }
};

/// Returns the checkpoint's name of a module. A layout names the modules of all experts at once: "mlp.experts.N.up_proj".
std::string stored_module(const TensorLayout& layout, std::string_view module) {
  const std::string_view experts = ".experts.";
  const std::size_t at = module.find(experts);
  if (at == module.npos) {
    const std::string* name = layout.module(module);
    return name ? *name : std::string(module);
  }
  const std::size_t begin = at + experts.size(), end = module.find('.', begin);
  const std::string number(module.substr(begin, end - begin));
  const std::string* name =
      layout.module(std::string(module.substr(0, begin)) + "N" + std::string(module.substr(end)));
  if (!name) return std::string(module);
  std::string found = *name;
  return found.replace(found.find(".N.") + 1, 1, number);
}

/// A tensor that holds several parameters.
struct Joint {
  const std::string* name = nullptr;  ///< of its module; null: the parameter has a tensor of its own
  std::int64_t rows = 0;
  std::int64_t before = 0;  ///< rows of the parameters before this one
  std::int64_t index = 0;   ///< of the parameter
};

Joint joint_of(const TensorLayout& layout, const ModelConfig& model, std::string_view module,
               std::int64_t own) {
  constexpr std::array kQkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  constexpr std::array kGateUp = {"mlp.gate_proj", "mlp.up_proj"};
  if (const auto at = std::find(kQkv.begin(), kQkv.end(), module); at != kQkv.end()) {
    const std::int64_t q = model.q_width(), kv = model.kv_width(), index = at - kQkv.begin();
    if (const std::string* name = layout.module("self_attn.qkv_proj"))
      return {name, q + 2 * kv, index == 0 ? 0 : q + (index - 1) * kv, index};
  }
  if (const auto at = std::find(kGateUp.begin(), kGateUp.end(), module); at != kGateUp.end()) {
    const std::int64_t index = at - kGateUp.begin();
    if (const std::string* name = layout.module("mlp.gate_up_proj"))
      return {name, 2 * own, index * own, index};
  }
  return {};
}

}  // namespace

bool is_named_tensor(std::string_view name) {
  const auto ends = [&](const std::string& end) { return name.ends_with(end); };
  const std::vector<TensorLayout>& all = tensor_layouts();
  return std::any_of(all.begin(), all.end(), [&](const TensorLayout& layout) {
    return std::any_of(layout.only.begin(), layout.only.end(), ends);
  });
}

StoredPart StoredForm::part_of_layout(const Parameter& p, StoredPart part) const {
  const NameParts name(p.name);
  const bool vector = p.kind != ParameterKind::matrix;
  const std::int64_t own = vector ? p.cols : p.rows, width = vector ? 1 : p.cols;
  const Joint joint = joint_of(*layout_, model_, name.module, own);
  std::string block(name.block);
  if (!block.empty() && !layout_->blocks.empty()) block.replace(0, kBlocks.size(), layout_->blocks);
  part.name =
      block + (joint.name ? *joint.name : stored_module(*layout_, name.module)) + std::string(name.which);
  const std::int64_t all = joint.name ? joint.rows : own;
  if (joint.name) {
    part.shape = vector ? std::vector{all} : std::vector{all, width};
    part.first = joint.before * width;
  }
  if (joint.name && layout_->by_head) {
    part.first = 0;
    part.size = all * width;
    part.head_rows = model_.head_dim;
    part.head_pitch = 3 * model_.head_dim;
    part.offset = joint.index * model_.head_dim * width;
  }
  if (layout_->transposed && !vector && !block.empty()) {
    part.shape = {width, all};
    part.first = 0;
    part.size = all * width;
    part.offset = joint.before;
    part.row_stride = 1, part.column_stride = all;
  }
  return part;
}

}  // namespace precbench
