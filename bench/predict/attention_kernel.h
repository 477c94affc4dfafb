// Kernels of attention as far as their rates differ: precbench's Hopper kernels, cuDNN's and the flash kernels, each
// also for windows and soft-capped scores. A measured step's are read from its record, a predicted step's follow the
// rule by which the CUDA device selects (kernels/cuda/attention).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "bench/case/plan.h"
#include "kernels/device/ops.h"

namespace precbench {

inline constexpr const char* kHopperKernel = "hopper";
inline constexpr const char* kCudnnKernel = "cudnn";
inline constexpr const char* kFlashKernel = "flash";

/// Settings that decide, beside the shape, which kernels compute attention.
struct AttentionSetting {
  enum class Choice : std::uint8_t { automatic, cudnn, own };
  Choice choice = Choice::automatic;  ///< `own` also without cuDNN
  bool deterministic = false;
  bool softcap = false;  ///< of the model's scores
  bool separate_keys = false;  ///< of context ranks: keys are not in the rows of the queries
  bool operator==(const AttentionSetting&) const = default;
};

/// Returns the setting of a case on a machine with cuDNN or without.
AttentionSetting attention_setting(const Plan& plan, bool has_cudnn = true);

/// Returns the kernel of `attention` or `attention_backward`: kHopperKernel, kCudnnKernel or kFlashKernel, followed by
/// " window" where the op leaves out pairs that causal attention has, and by " softcap". `hopper`: on a Hopper GPU.
std::string attention_kernel(const OpCost& op, const AttentionSetting& setting, bool hopper);

/// Returns true for what attention_kernel() may return.
bool is_attention_kernel(std::string_view kernel);

/// Returns true for `attention` and `attention_backward`.
bool is_attention(std::string_view op);
/// Returns true if attention leaves out pairs that causal attention has, as in a window shorter than the sequence or
/// within documents.
bool leaves_out_pairs(const OpCost& op);
/// Returns how many keys a query sees, on average.
double mean_keys(const OpCost& op);

/// Returns kHopperKernel, kCudnnKernel or kFlashKernel of a record's Support::attention (results/record/record.h), as
/// in "own 128x160 forward, cudnn 9.14 backward", for the last attention op of that direction in the step; null if it
/// does not say.
std::optional<std::string> recorded_attention_kernel(const std::string& names, bool backward);

}  // namespace precbench
