// The CPU device: the specification of every op, written to be read, and fast enough to train a small model.
// All ops accept FP32 as well as BF16 activations, so that gradients can be checked against finite
// differences. A rank's ops run one after another, each split over `threads` OpenMP threads without changing
// any sum's order: results do not depend on the thread count.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/device/device.h"

namespace precbench {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads);

  std::string name() const override { return "cpu"; }
  GemmSupport support(const GemmRecipe& gemm, GemmRole role) const override;

  void* allocate(std::int64_t bytes) override;
  void deallocate(void* block) override;
  void upload(const Tensor& dst, const void* src) override;
  void download(void* dst, const Tensor& src) override;
  void synchronize() override {}

  OpSet supported_ops() const override { return bodies_of<CpuDevice>(); }
  // scratch.cpp
  using Device::scratch_of;
  ScratchSizes scratch_of(const ops::Quantize& op) const override;
  ScratchSizes scratch_of(const ops::Dequantize& op) const override;
  ScratchSizes scratch_of(const ops::InverseHadamard& op) const override;
  ScratchSizes scratch_of(const ops::Matmul& op) const override;
  ScratchSizes scratch_of(const ops::Amax& op) const override;
  ScratchSizes scratch_of(const ops::QuantizeWithAmax& op) const override;
  ScratchSizes scratch_of(const ops::QuantizationError& op) const override;
  ScratchSizes scratch_of(const ops::AddRmsnorm& op) const override;
  ScratchSizes scratch_of(const ops::RecomputeRmsnorm& op) const override;
  ScratchSizes scratch_of(const ops::RmsnormBackward& op) const override;
  ScratchSizes scratch_of(const ops::AddLayernorm& op) const override;
  ScratchSizes scratch_of(const ops::RecomputeLayernorm& op) const override;
  ScratchSizes scratch_of(const ops::LayernormBackward& op) const override;
  ScratchSizes scratch_of(const ops::Activate& op) const override;
  ScratchSizes scratch_of(const ops::ActivateBackward& op) const override;
  ScratchSizes scratch_of(const ops::RopeBackward& op) const override;
  ScratchSizes scratch_of(const ops::Attention& op) const override;
  ScratchSizes scratch_of(const ops::Swiglu& op) const override;
  ScratchSizes scratch_of(const ops::SwigluBackward& op) const override;
  ScratchSizes scratch_of(const ops::Route& op) const override;
  ScratchSizes scratch_of(const ops::RouteBackward& op) const override;
  ScratchSizes scratch_of(const ops::Permute& op) const override;
  ScratchSizes scratch_of(const ops::QuantizeExperts& op) const override;
  ScratchSizes scratch_of(const ops::GroupedMatmul& op) const override;
  ScratchSizes scratch_of(const ops::GroupedSwiglu& op) const override;
  ScratchSizes scratch_of(const ops::GroupedSwigluBackward& op) const override;
  // elementwise.cpp
  void do_zero(const ops::Zero& op) override;
  void do_convert(const ops::Convert& op) override;
  void do_add(const ops::Add& op) override;
  void do_init_normal(const ops::InitNormal& op) override;
  void do_fill(const ops::Fill& op) override;
  void do_sum(const ops::Sum& op) override;
  void do_sum_of_squares(const ops::SumOfSquares& op) override;
  void do_fingerprint(const ops::Fingerprint& op) override;
  void do_correlate(const ops::Correlate& op) override;
  // fp4.cpp
  void do_dequantize(const ops::Dequantize& op) override;
  void do_inverse_hadamard(const ops::InverseHadamard& op) override;
  // quantize.cpp
  void do_quantize(const ops::Quantize& op) override;
  void do_quantization_error(const ops::QuantizationError& op) override;
  void do_amax(const ops::Amax& op) override;
  void do_quantize_with_amax(const ops::QuantizeWithAmax& op) override;
  void do_update_history(const ops::UpdateHistory& op) override;
  void do_transpose(const ops::Transpose& op) override;
  void do_copy_columns(const ops::CopyColumns& op) override;
  void do_place_rows(const ops::PlaceRows& op) override;
  // matmul.cpp
  void do_matmul(const ops::Matmul& op) override;
  // embedding.cpp
  void do_embedding(const ops::Embedding& op) override;
  void do_embedding_backward(const ops::EmbeddingBackward& op) override;
  // rmsnorm.cpp
  void do_add_rmsnorm(const ops::AddRmsnorm& op) override;
  void do_recompute_rmsnorm(const ops::RecomputeRmsnorm& op) override;
  void do_rmsnorm_backward(const ops::RmsnormBackward& op) override;
  void do_add_layernorm(const ops::AddLayernorm& op) override;
  void do_recompute_layernorm(const ops::RecomputeLayernorm& op) override;
  void do_layernorm_backward(const ops::LayernormBackward& op) override;
  void do_activate(const ops::Activate& op) override;
  void do_activate_backward(const ops::ActivateBackward& op) override;
  // rope.cpp
  void do_rope(const ops::Rope& op) override;
  void do_rope_backward(const ops::RopeBackward& op) override;
  // latent_heads.cpp
  void do_latent_heads(const ops::LatentHeads& op) override;
  void do_latent_heads_backward(const ops::LatentHeadsBackward& op) override;
  // bias.cpp
  void do_add_bias(const ops::AddBias& op) override;
  void do_bias_backward(const ops::BiasBackward& op) override;
  // gate_rows.cpp
  void do_gate_rows(const ops::GateRows& op) override;
  void do_gate_rows_backward(const ops::GateRowsBackward& op) override;
  // attention.cpp
  void do_attention(const ops::Attention& op) override;
  void do_attention_backward(const ops::AttentionBackward& op) override;
  // attention_sink.cpp
  void do_attention_sink(const ops::AttentionSink& op) override;
  void do_attention_sink_backward(const ops::AttentionSinkBackward& op) override;
  void do_merge_attention(const ops::MergeAttention& op) override;
  // swiglu.cpp
  void do_swiglu(const ops::Swiglu& op) override;
  void do_swiglu_backward(const ops::SwigluBackward& op) override;
  void do_grouped_swiglu(const ops::GroupedSwiglu& op) override;
  void do_grouped_swiglu_backward(const ops::GroupedSwigluBackward& op) override;
  // route.cpp
  void do_route(const ops::Route& op) override;
  void do_route_backward(const ops::RouteBackward& op) override;
  void do_update_routing_bias(const ops::UpdateRoutingBias& op) override;
  // expert_bias.cpp
  void do_add_expert_bias(const ops::AddExpertBias& op) override;
  void do_expert_bias_backward(const ops::ExpertBiasBackward& op) override;
  void do_add_routed_bias(const ops::AddRoutedBias& op) override;
  void do_routed_bias_backward(const ops::RoutedBiasBackward& op) override;
  // group.cpp
  void do_group(const ops::Group& op) override;
  void do_group_peers(const ops::GroupPeers& op) override;
  void do_permute(const ops::Permute& op) override;
  void do_unpermute(const ops::Unpermute& op) override;
  // transpose_codes.cpp
  void do_transpose_codes(const ops::TransposeCodes& op) override;
  // experts.cpp
  void do_quantize_experts(const ops::QuantizeExperts& op) override;
  void do_grouped_matmul(const ops::GroupedMatmul& op) override;
  // cross_entropy.cpp
  void do_cross_entropy(const ops::CrossEntropy& op) override;
  void do_logit_stats(const ops::LogitStats& op) override;
  void do_logit_gradient(const ops::LogitGradient& op) override;
  // compare_logits.cpp
  void do_compare_logits(const ops::CompareLogits& op) override;
  // adamw.cpp
  void do_adamw(const ops::Adamw& op) override;
  // scaled_values.cpp
  void do_commit_scale(const ops::CommitScale& op) override;
  void do_encode(const ops::Encode& op) override;
  void do_decode(const ops::Decode& op) override;
  void do_sum_codes(const ops::SumCodes& op) override;
  // lion.cpp
  void do_lion(const ops::Lion& op) override;
  // muon.cpp
  void do_descend(const ops::Descend& op) override;
  void do_momentum(const ops::Momentum& op) override;
  void do_to_unit_norm(const ops::ToUnitNorm& op) override;
  void do_combine(const ops::Combine& op) override;
  // adafactor.cpp
  void do_factored_sums(const ops::FactoredSums& op) override;
  void do_factored_average(const ops::FactoredAverage& op) override;
  void do_factored_norm(const ops::FactoredNorm& op) override;
  void do_factored_update(const ops::FactoredUpdate& op) override;

 private:
  /// Returns FP32 scratch `slot` with `size` floats, kept between calls; contents undefined. Throws if `size`
  /// exceeds scratch_of().
  float* scratch(int slot, std::int64_t size);
  /// Returns an operand's matrix as FP32 in its storage order: in scratch(slot), or in place if it is FP32.
  const float* widen(int slot, const GemmOperand& operand);
  void widen_fp8(float* out, const GemmOperand& operand);
  /// Returns the values of a kept input, FP32, in scratch 2.
  Tensor dequantized(const GemmOperand& kept);
  // experts.cpp
  /// Makes the quantized copies of a grouped value; padding is zeros.
  void quantize_groups(const QuantizedTensor& x, const Groups& groups);
  /// Like widen(), for stacked weights and for the columnwise copy of a grouped value.
  const float* widen_experts(int slot, const GemmOperand& operand, std::int64_t experts);
  const float* widen_columns(int slot, const GemmOperand& operand, const Groups& groups);
  // custom_format.cpp
  /// Makes a copy in a custom format of the matrix [rows, k]; `columns`: it is the value's transpose.
  void quantize_custom(const GemmOperand& operand, const float* matrix, float tensor_amax,
                       const RandomStream& random, bool columns);
  void widen_custom(float* out, const GemmOperand& operand);
  // fp4.cpp
  /// Makes an FP4 copy of the matrix [rows, k]; `columns`: it is the value's transpose.
  void quantize_fp4(const GemmOperand& operand, const float* matrix, const RandomStream& random,
                    bool columns);
  /// Returns the matrix [rows, k] with the FP4 format's transform applied, in scratch(slot), which may be the
  /// input.
  const float* transformed(int slot, const QuantFormat& format, const float* matrix, std::int64_t rows,
                           std::int64_t k, const RandomStream& random, bool columns);
  /// Writes codes times block scales; the tensor's factor is part of a GEMM's alpha.
  void widen_fp4(float* out, const GemmOperand& operand);
  /// Returns cos and sin of every position, cached until a call with other angles.
  const std::vector<float>& rope_table(const RopeOptions& options);

  int threads_;
  struct Scratch {
    std::unique_ptr<float[]> data;
    std::int64_t size = 0;
  };
  std::array<Scratch, kScratchSlots> scratch_;
  std::vector<float> rope_table_;  // [T][head_dim/2] pairs of cos, sin
  RopeAngles rope_angles_;         // of the cached table
};

}  // namespace precbench
