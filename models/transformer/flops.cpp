// Closed-form model FLOPs. See flops.h for the formula.
#include "models/transformer/flops.h"

#include "models/config/block.h"

namespace precbench {
namespace {

/// Two FLOPs per multiply-add in each of the three GEMMs.
constexpr std::int64_t kFlopsPerWeight = 6;

}  // namespace

const char* name_of(FlopConvention convention) {
  return convention == FlopConvention::causal ? "causal" : "torchtitan";
}

FlopCount flops_per_token(const ModelConfig& config, std::int64_t seq, FlopConvention convention) {
  FlopCount count;
  const std::int64_t head_weights = head_linear(config).size();
  count.head = kFlopsPerWeight * head_weights;
  // Per token and block, QK^T and PV are a seq x D product for each head: 2 seq D weights' worth per head,
  // unmasked.
  const std::int64_t full_attention = kFlopsPerWeight * config.layers * 2 * seq * config.q_width();
  if (convention == FlopConvention::causal) {
    count.gemm = kFlopsPerWeight * active_matrix_parameters(config);
    count.attention = full_attention / 2;
  } else {
    // torchtitan uses 6 N, with N all parameters minus the embedding, unless that is also the head.
    const std::int64_t vocabulary_weights = (config.tied ? 1 : 2) * head_weights;
    count.gemm = kFlopsPerWeight * (active_parameter_count(config) - vocabulary_weights);
    count.attention = full_attention;
  }
  return count;
}

}  // namespace precbench
