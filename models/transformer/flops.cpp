// Closed-form model FLOPs. See flops.h for the formula.
#include "models/transformer/flops.h"

#include <algorithm>

#include "models/config/block.h"
#include "models/transformer/state/lora.h"

namespace precbench {
namespace {

/// Two FLOPs per multiply-add in each of the three GEMMs.
constexpr std::int64_t kFlopsPerWeight = 6;
/// The same without dW.
constexpr std::int64_t kFlopsPerFrozenWeight = 4;

/// Returns the attention FLOPs per position of packed documents.
std::int64_t packed_attention(const ModelConfig& config, std::int64_t seq, const PackedLengths& packed) {
  const std::int64_t widths = config.q_width() + config.attention_width();
  double sum = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::int64_t window = config.window(layer) < seq ? config.window(layer) : 0;
    const double outside = window > 0 ? static_cast<double>((seq - window) * (seq - window)) : 0;
    const double pairs = (static_cast<double>(seq * seq) - outside) / 2 * packed.visible(seq, window);
    sum += static_cast<double>(kFlopsPerWeight * widths) * pairs / static_cast<double>(seq);
  }
  return static_cast<std::int64_t>(sum);
}

}  // namespace

const char* name_of(FlopConvention convention) {
  return convention == FlopConvention::causal ? "causal" : "torchtitan";
}

FlopCount flops_per_token(const ModelConfig& config, std::int64_t seq, FlopConvention convention,
                          std::int64_t lora_rank, const PackedLengths* packed) {
  FlopCount count;
  const std::int64_t head_weights = head_linear(config).size();
  count.head = kFlopsPerWeight * head_weights;
  // Per token and block, QK^T is a seq x D GEMM for each head and PV one of seq x V: unmasked, seq (D + V) weights'
  // worth per head.
  const std::int64_t widths = config.q_width() + config.attention_width();
  const std::int64_t full_attention = kFlopsPerWeight * config.layers * seq * widths;
  // In a window of w tokens the seq - w later queries miss (seq - w)^2 / 2 pairs more. torchtitan
  // counts w keys per query.
  std::int64_t outside = 0, windowed = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::int64_t window = config.window(layer);
    if (window > 0 && window < seq)
      outside += kFlopsPerWeight * (seq - window) * (seq - window) * widths / (2 * seq);
    windowed += kFlopsPerWeight * (window > 0 ? std::min(window, seq) : seq) * widths;
  }
  if (convention == FlopConvention::causal) {
    count.gemm = kFlopsPerWeight * active_matrix_parameters(config);
    count.attention = packed ? packed_attention(config, seq, *packed) : full_attention / 2 - outside;
  } else {
    // torchtitan uses 6 N, with N all parameters minus the embeddings, unless that of tokens is also the head.
    const std::int64_t embeddings =
        (config.tied ? 1 : 2) * head_weights + config.learned_positions * config.width;
    count.gemm = kFlopsPerWeight * (active_parameter_count(config) - embeddings);
    count.attention = windowed;
  }
  if (lora_rank > 0) {
    count.gemm = count.gemm / kFlopsPerWeight * kFlopsPerFrozenWeight +
                 kFlopsPerWeight * lora_parameter_count(config, lora_rank);
    count.head = count.head / kFlopsPerWeight * kFlopsPerFrozenWeight;
  }
  return count;
}

}  // namespace precbench
