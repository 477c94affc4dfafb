// Tensors of families whose checkpoints have names of their own. See stored_form.h.
//
// GPT-2       every matrix of a block [in, out]; q, k and v side by side in c_attn
// GPT-BigCode q, k and v one after the other in c_attn
// GPT-NeoX    q, k and v of one head, then those of the next, in query_key_value
// GPT-J, Phi-2, StarCoder2, EXAONE 3 and Hunyuan have a tensor for each parameter
#include <algorithm>
#include <array>
#include <iterator>

#include "bench/step/stored_form.h"

namespace precbench {
namespace {

/// A module's name here, and in the checkpoints of `family`.
struct ModuleName {
  TensorFusion family;
  std::string_view ours, theirs;
};
constexpr ModuleName kModuleNames[] = {
    {TensorFusion::gpt2, "self_attn.qkv_proj", "attn.c_attn"},
    {TensorFusion::gpt2, "self_attn.o_proj", "attn.c_proj"},
    {TensorFusion::gpt2, "mlp.up_proj", "mlp.c_fc"},
    {TensorFusion::gpt2, "mlp.down_proj", "mlp.c_proj"},
    {TensorFusion::gptj, "self_attn.q_proj", "attn.q_proj"},
    {TensorFusion::gptj, "self_attn.k_proj", "attn.k_proj"},
    {TensorFusion::gptj, "self_attn.v_proj", "attn.v_proj"},
    {TensorFusion::gptj, "self_attn.o_proj", "attn.out_proj"},
    {TensorFusion::gptj, "mlp.up_proj", "mlp.fc_in"},
    {TensorFusion::gptj, "mlp.down_proj", "mlp.fc_out"},
    {TensorFusion::gpt_neox, "model.embed_tokens", "gpt_neox.embed_in"},
    {TensorFusion::gpt_neox, "model.norm", "gpt_neox.final_layer_norm"},
    {TensorFusion::gpt_neox, "lm_head", "embed_out"},
    {TensorFusion::gpt_neox, "self_attn.qkv_proj", "attention.query_key_value"},
    {TensorFusion::gpt_neox, "self_attn.o_proj", "attention.dense"},
    {TensorFusion::gpt_neox, "mlp.up_proj", "mlp.dense_h_to_4h"},
    {TensorFusion::gpt_neox, "mlp.down_proj", "mlp.dense_4h_to_h"},
    {TensorFusion::phi, "model.norm", "model.final_layernorm"},
    {TensorFusion::phi, "self_attn.o_proj", "self_attn.dense"},
    {TensorFusion::phi, "mlp.up_proj", "mlp.fc1"},
    {TensorFusion::phi, "mlp.down_proj", "mlp.fc2"},
    {TensorFusion::starcoder2, "mlp.up_proj", "mlp.c_fc"},
    {TensorFusion::starcoder2, "mlp.down_proj", "mlp.c_proj"},
    {TensorFusion::exaone, "self_attn.q_proj", "attn.attention.q_proj"},
    {TensorFusion::exaone, "self_attn.k_proj", "attn.attention.k_proj"},
    {TensorFusion::exaone, "self_attn.v_proj", "attn.attention.v_proj"},
    {TensorFusion::exaone, "self_attn.o_proj", "attn.attention.out_proj"},
    {TensorFusion::exaone, "mlp.gate_proj", "mlp.c_fc_0"},
    {TensorFusion::exaone, "mlp.up_proj", "mlp.c_fc_1"},
    {TensorFusion::exaone, "mlp.down_proj", "mlp.c_proj"},
    {TensorFusion::hunyuan, "self_attn.q_norm", "self_attn.query_layernorm"},
    {TensorFusion::hunyuan, "self_attn.k_norm", "self_attn.key_layernorm"},
};
/// Names that GPT-2, GPT-BigCode, GPT-J and EXAONE 3 have in common.
constexpr std::pair<std::string_view, std::string_view> kGptNames[] = {
    {"model.embed_tokens", "transformer.wte"}, {"model.embed_positions", "transformer.wpe"},
    {"model.norm", "transformer.ln_f"},        {"input_layernorm", "ln_1"},
    {"post_attention_layernorm", "ln_2"},
};

bool is_gpt(TensorFusion family) {
  return family == TensorFusion::gpt2 || family == TensorFusion::gpt_bigcode ||
         family == TensorFusion::gptj || family == TensorFusion::exaone;
}

std::string module_name(TensorFusion family, std::string_view module) {
  for (const auto& [ours, theirs] : kGptNames)
    if (is_gpt(family) && module == ours) return std::string(theirs);
  const TensorFusion same = family == TensorFusion::gpt_bigcode ? TensorFusion::gpt2 : family;
  for (const ModuleName& known : kModuleNames)
    if (known.family == same && known.ours == module) return std::string(known.theirs);
  return std::string(module);
}

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

}  // namespace

bool is_named_tensor(std::string_view name) {
  constexpr std::array kOnly = {"attn.c_attn.weight",     "attn.out_proj.weight", ".query_key_value.weight",
                                "mlp.fc1.weight",         "mlp.c_fc.weight",      "mlp.c_fc_0.weight",
                                ".query_layernorm.weight"};
  return std::any_of(kOnly.begin(), kOnly.end(), [&](const char* end) { return name.ends_with(end); });
}

StoredPart StoredForm::part_of_named(const Parameter& p, StoredPart part) const {
  const NameParts name(p.name);
  const bool joins_qkv = joined_ == TensorFusion::gpt2 || joined_ == TensorFusion::gpt_bigcode ||
                         joined_ == TensorFusion::gpt_neox;
  constexpr std::array kQkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  const auto place = std::find(kQkv.begin(), kQkv.end(), name.module);
  const bool joint = joins_qkv && place != kQkv.end(), vector = p.kind != ParameterKind::matrix;
  std::string block(name.block);
  if (!block.empty() && (is_gpt(joined_) || joined_ == TensorFusion::gpt_neox))
    block.replace(0, kBlocks.size(), is_gpt(joined_) ? "transformer.h." : "gpt_neox.layers.");
  part.name =
      block + module_name(joined_, joint ? "self_attn.qkv_proj" : name.module) + std::string(name.which);
  const bool transposed = joined_ == TensorFusion::gpt2 && !vector && !block.empty();
  const std::int64_t own = vector ? p.cols : p.rows, width = vector ? 1 : p.cols;
  std::int64_t all = own, before = 0;
  if (joint) {
    const std::int64_t q = model_.q_width(), kv = model_.kv_width(), index = place - kQkv.begin();
    all = q + 2 * kv;
    before = index == 0 ? 0 : q + (index - 1) * kv;
    part.shape = vector ? std::vector{all} : std::vector{all, width};
    part.first = before * width;
    if (joined_ == TensorFusion::gpt_neox) {
      part.first = 0;
      part.size = all * width;
      part.head_rows = model_.head_dim;
      part.head_pitch = 3 * model_.head_dim;
      part.offset = index * model_.head_dim * width;
    }
  }
  if (transposed) {
    part.shape = {width, all};
    part.first = 0;
    part.size = all * width;
    part.offset = before;
    part.row_stride = 1, part.column_stride = all;
  }
  return part;
}

}  // namespace precbench
