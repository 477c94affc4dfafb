// Layouts as Hugging Face stores them. See stored_form.h.
//
// Llama 4:
//   experts.gate_up_proj [E, C, 2F], down_proj [E, F, C]: each expert's matrices transposed, gate before up
//   q_proj, k_proj: RoPE pairs rows 2i and 2i + 1 of a head; here row i is paired with row head_dim/2 + i
// gpt-oss: experts as Llama 4's, but with columns that alternate between gate and up, and gate_up_proj_bias [E, 2F],
//   down_proj_bias [E, C]
// Others: stored_names.cpp
#include "bench/step/stored_form.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace precbench {
namespace {

constexpr std::string_view kExpertsOfBlock = ".experts.";

/// Returns 5 for "model.layers.0.feed_forward.experts.5.gate_proj.weight".
std::int64_t expert_of(const std::string& name, std::size_t at) {
  return std::stoll(name.substr(at + kExpertsOfBlock.size()));
}

/// Calls visit(index of the parameter, index of the run) for all elements.
template <class Visit>
void each_element(const StoredPart& part, const Parameter& p, const Visit& visit) {
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t c = 0; c < p.cols; ++c) visit(r * p.cols + c, part.at(r, c));
}

}  // namespace

std::int64_t StoredPart::at(std::int64_t row, std::int64_t column) const {
  std::int64_t& ordered = vector ? column : row;
  ordered = order.stored(ordered);
  if (head_rows != head_pitch) ordered += ordered / head_rows * (head_pitch - head_rows);
  return offset + row * row_stride + column * column_stride;
}

void StoredPart::gather(float* values, const float* run, const Parameter& p) const {
  if (plain()) return void(std::copy_n(run, p.size(), values));
  each_element(*this, p, [&](std::int64_t i, std::int64_t at) { values[i] = run[at]; });
}

void StoredPart::scatter(float* run, const float* values, const Parameter& p) const {
  if (plain()) return void(std::copy_n(values, p.size(), run));
  each_element(*this, p, [&](std::int64_t i, std::int64_t at) { run[at] = values[i]; });
}

StoredPart StoredForm::part_of_experts(const Parameter& p, StoredPart part) const {
  const std::size_t at = p.name.find(kExpertsOfBlock);
  if (at == std::string::npos) return part;
  const bool down = p.name.find(".down_proj.") != std::string::npos, bias = part.vector,
             up = p.name.find(".up_proj.") != std::string::npos,
             alternating = !down && model_.moe.names == ExpertNames::gpt_oss;
  const std::int64_t own = bias ? p.cols : p.rows, out = (down ? 1 : 2) * own;
  part.name = p.name.substr(0, at + kExpertsOfBlock.size()) + (down ? "down_proj" : "gate_up_proj") +
              (bias ? "_bias" : "");
  part.shape = {model_.moe.rule.experts, p.cols, out};
  if (bias) part.shape = {model_.moe.rule.experts, out};
  part.size = bias ? out : p.cols * out;
  part.first = expert_of(p.name, at) * part.size;
  part.offset = !up ? 0 : alternating ? 1 : own;
  const std::int64_t next = alternating ? 2 : 1;  // distance of two of its outputs
  part.row_stride = bias ? 0 : next, part.column_stride = bias ? next : out;
  return part;
}

StoredPart StoredForm::part_of(const Parameter& p) const {
  StoredPart part{p.name, p.shape(), 0, p.size(), 0, p.cols, 1, stored_order(model_, p.name)};
  part.vector = p.kind != ParameterKind::matrix;
  if (model_.moe.names == ExpertNames::ernie4_5 && p.name.ends_with("e_score_correction_bias"))
    part.shape = {1, p.cols};
  if (!layout_->modules.empty()) return part_of_layout(p, std::move(part));
  if (!fused_) return part;
  if (model_.moe.names == ExpertNames::llama4 &&
      (p.name.ends_with("self_attn.q_proj.weight") || p.name.ends_with("self_attn.k_proj.weight")))
    part.order = {model_.head_dim, model_.head_dim, RopePairs::interleaved};
  return part_of_experts(p, std::move(part));
}

}  // namespace precbench
