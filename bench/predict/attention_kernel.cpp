// Follows the rule of the CUDA device. See attention_kernel.h.
#include "bench/predict/attention_kernel.h"

#include "kernels/gpu/attention_choice.h"
#include "kernels/gpu/shape_limits.h"

namespace precbench {
namespace {

constexpr std::string_view kForwardOp = "attention", kBackwardOp = "attention_backward";

AttentionShape causal_shape(const OpCost& op) {
  const auto& s = op.shape;
  return {
      .B = s[0], .T = s[1], .heads = s[4], .kv_heads = s[5], .head_dim = s[6], .T_k = s[2], .offset = s[3]};
}

double causal_flops(const OpCost& op) {
  const auto flops_of = [&](auto whole) {
    whole.shape = causal_shape(op);
    return whole.cost().flops;
  };
  return op.name == kForwardOp ? flops_of(ops::Attention{}) : flops_of(ops::AttentionBackward{});
}

/// Returns true if queries see fewer keys. Heads of latent attention (MLA) leave out FLOPs, too: their values are
/// narrower.
bool has_window(const OpCost& op) {
  constexpr std::int64_t kLatentWidth = 192;
  return op.shape[6] != kLatentWidth && leaves_out_pairs(op);
}

/// Returns the family without windows and soft-capped scores.
const char* family_of(const OpCost& op, const AttentionSetting& setting, bool hopper) {
  using Choice = AttentionSetting::Choice;
  const AttentionShape shape = causal_shape(op);
  const bool ours = hopper && cuda::hopper_attention_takes(shape.head_dim);
  const bool window = has_window(op), square = shape.square();
  const bool in_cudnn = !setting.softcap && cuda::cudnn_mask(shape) && (!window || square);
  if (!in_cudnn || setting.choice == Choice::own)
    return ours && (!window || (setting.softcap && square)) ? kHopperKernel : kFlashKernel;
  // Rates at an offset are known of these alone, on any GPU and with any choice.
  if (shape.keys() != shape.T) return kHopperKernel;
  const bool faster = op.name == kForwardOp || setting.separate_keys ||
                      cuda::hopper_backward_is_faster(shape.keys(), shape.head_dim, setting.deterministic);
  return ours && !window && faster && setting.choice == Choice::automatic ? kHopperKernel : kCudnnKernel;
}

}  // namespace

bool is_attention(std::string_view op) { return op == kForwardOp || op == kBackwardOp; }

AttentionSetting attention_setting(const Plan& plan, bool has_cudnn) {
  using Choice = AttentionSetting::Choice;
  AttentionSetting setting;
  const std::string& choice = plan.fields.attention;
  if (choice == "own" || !has_cudnn)
    setting.choice = Choice::own;
  else if (choice == "cudnn")
    setting.choice = Choice::cudnn;
  setting.deterministic = plan.deterministic;
  setting.softcap = plan.model.block.attention_softcap != 0;
  setting.separate_keys = plan.fields.context > 1;
  return setting;
}

std::string attention_kernel(const OpCost& op, const AttentionSetting& setting, bool hopper) {
  std::string kernel = family_of(op, setting, hopper);
  if (has_window(op)) kernel += " window";
  if (setting.softcap) kernel += " softcap";
  return kernel;
}

bool is_attention_kernel(std::string_view kernel) {
  for (const char* family : {kHopperKernel, kCudnnKernel, kFlashKernel})
    for (const char* scores : {"", " window", " softcap", " window softcap"})
      if (kernel == std::string(family) + scores) return true;
  return false;
}

bool leaves_out_pairs(const OpCost& op) {
  constexpr double kRounding = 0.999;
  return op.flops < kRounding * causal_flops(op);
}

double mean_keys(const OpCost& op) {
  const AttentionShape shape = causal_shape(op);
  const double whole = causal_flops(op);
  const auto queries = static_cast<double>(shape.T);
  const double causal = static_cast<double>(shape.offset) + queries / 2;
  return whole > 0 ? causal * op.flops / whole : causal;
}

std::optional<std::string> recorded_attention_kernel(const std::string& names, bool backward) {
  // "A forward, B backward", or one name of both directions.
  std::string_view name = names;
  const std::string_view forward_end = " forward, ";
  if (const auto at = name.find(forward_end); at != std::string_view::npos)
    name = backward ? name.substr(at + forward_end.size()) : name.substr(0, at);
  if (name.starts_with("cudnn")) return kCudnnKernel;
  if (name.starts_with("own ") && name.find('x') != std::string_view::npos) return kHopperKernel;
  if (name.starts_with("own")) return kFlashKernel;
  return std::nullopt;
}

}  // namespace precbench
