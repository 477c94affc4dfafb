// Checks of a plan with adapters. See lora_support.h.
#include "bench/case/lora_support.h"

#include <fmt/format.h>

#include <string_view>

namespace precbench {

std::optional<std::string> lora_unsupported_reason(const Plan& plan) {
  const LoraOptions& lora = plan.parameters.lora;
  if (!lora) return std::nullopt;
  if (plan.parameters.expert_ranks > 1)
    return "--lora-rank: frozen experts are not divided among ranks (--ep); use --parallel fsdp";
  if (plan.model.latent) return "--lora-rank: adapters of latent attention (MLA) are not supported";
  if (plan.model.block.attention_sinks) return "--lora-rank: frozen attention sinks are not supported";
  if (plan.model.block.fusion != TensorFusion::none)
    return fmt::format(
        "--lora-rank: checkpoints of {} have several of its matrices in one tensor or under other names, whose adapters "
        "are not supported",
        plan.model.name);
  if (plan.fp8_gather)
    return "--lora-rank: --gather fp8 is not supported with frozen weights; use --gather bf16";
  if (plan.parameters.master == Master::fp16) return "--lora-rank: adapters have no FP16 master with scales";
  if (plan.fp8_weights) return "--lora-rank: --weights e4m3 is not supported with frozen weights";
  if (plan.parameters.gradients == DType::e4m3)
    return "--lora-rank: adapters' gradients in e4m3 are not supported; use --grads fp32 or bf16";
  if (const std::string_view name = plan.optimizer.optimizer->name; name == "muon")
    return "--lora-rank: muon orthogonalizes the model's matrices, which are frozen; use adamw, lion or adafactor";
  if (!plan.sensitivity.empty()) return "--lora-rank: --sensitivity is not supported with adapters";
  constexpr std::int64_t kGpuRanks = 8;
  if (plan.on_gpu && lora.rank % kGpuRanks != 0)
    return fmt::format(
        "--lora-rank: {} is not a multiple of {}, which the GEMMs of adapters need on the {} device",
        lora.rank, kGpuRanks, plan.fields.device);
  return std::nullopt;
}

}  // namespace precbench
