// The attention half of a block between its norm and the residual stream:
//   qkv = h Wqkv^T (or q, k and v as three GEMMs);  bias, QK-norm, RoPE;  attention;  out = attention Wo^T
// With latent attention the first GEMM makes latents, and latent_attention.cpp makes qkv of them.
#pragma once

#include <cstdint>

#include "models/transformer/layers/norm.h"
#include "models/transformer/layers/step_context.h"

namespace precbench {

struct AttentionSaved {
  /// With QK-norm: qkv before norm and RoPE, or between RoPE and a later norm; backward repeats them. Else after RoPE.
  Tensor raw_qkv;
  Tensor q, v;             ///< columns of the qkv GEMM's output, if selective recomputation keeps them
  Tensor projected;        ///< output of the qkv GEMM [M, projected_width()], with latent attention only
  Tensor q_rstd, kv_rstd;  ///< f32 [M]: of the latents' norms
  Tensor attention;        ///< [M, heads * width of a value head]
  Tensor lse;              ///< f32 [heads, M]
  /// Quantized output of attention: columnwise if KeptActivations says so, or rowwise if wgrad transposes it.
  GemmOperand copy;
  Tensor attention_amax;  ///< f32 [1], if both copies of attention's output have one scale per tensor
};

class AttentionLayer {
 public:
  explicit AttentionLayer(const StepContext& step) : step_(step) {}

  /// Allocate attention's output with what belongs to it, and raw_qkv.
  void push_saved(std::int64_t layer, AttentionSaved& saved) const;
  void push_qkv(AttentionSaved& saved) const;
  /// Allocates what selective recomputation keeps: attention's output with what belongs to it, and outputs of GEMMs.
  void push_selected(std::int64_t layer, AttentionSaved& saved) const;
  /// Computes saved.raw_qkv, or saved.projected, from h, the norm's output, which may then leave memory.
  void forward_qkv(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w,
                   const QuantizedTensor& h, ForwardKind kind = ForwardKind::full) const;
  /// Computes saved.raw_qkv once more as it is after forward_output.
  void recompute_qkv(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w,
                     const QuantizedTensor& h) const;
  /// Computes the output, this rank's rows of [M, width], from what forward_qkv wrote.
  void forward_output(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w,
                      const Tensor& out) const;
  /// Computes the output once more from attention's, and saved.raw_qkv as it is after forward_output.
  void repeat_output(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w,
                     const Tensor& out) const;
  /// Returns the gradient of the norm's output. `dy`: gradient of the output. The result and further
  /// temporaries are freed by the caller's scope.
  Tensor backward(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w,
                  const BlockTensors& g, const QuantizedTensor& dy, const NormOutput& norm) const;

 private:
  /// Computes the output from attention's, `x`.
  void project(std::int64_t layer, const QuantizedTensor& x, const BlockWeights& w, const Tensor& out) const;
  void output_wgrad(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w,
                    const BlockTensors& g, const QuantizedTensor& dy) const;

  /// Attention of this rank's queries, forward and backward. If ranks share the sequences, with the keys and
  /// values of all of them (context_attention.cpp).
  void attend(std::int64_t layer, QuantizedTensor& out, const Tensor& lse, const Tensor& qkv,
              const BlockWeights& w) const;
  void attend_backward(std::int64_t layer, const Tensor& dqkv, const Tensor& dout,
                       const AttentionSaved& saved, const Tensor& qkv, const BlockWeights& w,
                       const BlockTensors& g) const;
  /// The same with one rank's keys and values at a time (ring_attention.cpp), and without sinks. attend_ring() writes
  /// the value of `out`.
  void attend_ring(std::int64_t layer, const Tensor& out, const Tensor& lse, const Tensor& qkv) const;
  void attend_ring_backward(std::int64_t layer, const Tensor& dqkv, const Tensor& dout,
                            const AttentionSaved& saved, const Tensor& qkv) const;
  /// Returns the keys and values of whole sequences, [B * T, kv_width], from this rank's rows.
  Tensor gather_keys(const Tensor& qkv) const;
  /// Adds up the ranks' gradients of keys and values, [B * T, kv_width], and puts this rank's rows into dqkv.
  /// `dkv` is left undefined, and `scratch`, as large, too.
  void scatter_keys(const Tensor& dqkv, const Tensor& dkv, const Tensor& scratch) const;

  /// Returns the options of the rope op. Gains of 1 for a norm without trained ones are allocated in the
  /// caller's scope.
  RopeOptions rope_options(std::int64_t layer, const BlockWeights& w) const;
  /// Multiplies in qkv [M, qkv_width], or its gradient, the query of each sequence's last token by 1 + temperature ln 2
  /// (BlockForm). Does nothing unless sequences have temperature_positions tokens.
  void scale_last_queries(std::int64_t layer, const Tensor& qkv) const;
  bool norms_after_rope() const { return step_.config.block.qk_norm_after_rope; }
  /// Computes bias and RoPE in place, before apply_rope() computes a QK-norm that comes after RoPE.
  void rotate_only(const Tensor& qkv, std::int64_t layer, const BlockWeights& w) const;
  /// Makes saved.raw_qkv what it is after forward_output.
  void finish_qkv(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w) const;
  /// Computes attention's input `qkv` from raw_qkv: bias, QK-norm, RoPE, temperature. In place without QK-norm.
  void apply_rope(std::int64_t layer, const Tensor& qkv, const Tensor& raw_qkv, const BlockWeights& w) const;
  /// Computes dqkv, the gradient of raw_qkv with its quantized copies, and those of the QK-norm gains.
  /// `dout`: gradient of apply_rope()'s output, which this may change.
  void rope_backward(std::int64_t layer, QuantizedTensor& dqkv, const Tensor& dout, const Tensor& raw_qkv,
                     const BlockWeights& w, const BlockTensors& g) const;

  // Latent attention (latent_attention.cpp).
  struct Latent;
  bool latent() const { return static_cast<bool>(step_.config.latent); }
  /// Returns the width of the qkv GEMM's output.
  std::int64_t projected_width() const;
  Latent q_latent(const AttentionSaved& saved, const BlockWeights& w) const;
  Latent kv_latent(const AttentionSaved& saved, const BlockWeights& w) const;
  LatentHeadsOptions latent_options() const;
  /// Computes saved.raw_qkv from saved.projected.
  void latent_forward(std::int64_t layer, const AttentionSaved& saved, const BlockWeights& w) const;
  /// Computes the gradient of saved.projected with its quantized copies, and those of the latents' weights. `dqkv`:
  /// gradient of saved.raw_qkv.
  void latent_backward(std::int64_t layer, QuantizedTensor& dprojected, const Tensor& dqkv,
                       const AttentionSaved& saved, const BlockWeights& w, const BlockTensors& g) const;
  /// Computes y, the heads that a latent gives.
  void up_forward(std::int64_t layer, const Tensor& y, const Latent& latent, const Tensor& projected,
                  const BlockWeights& w) const;
  /// Computes the latent's columns of dprojected and the gradients of its weights from dy, which this quantizes.
  void up_backward(std::int64_t layer, const Tensor& dprojected, QuantizedTensor& dy, const Latent& latent,
                   const Tensor& dgain, const Tensor& projected, const BlockWeights& w,
                   const BlockTensors& g) const;

  // Separate q, k and v GEMMs (split_qkv.cpp); `x` and `dqkv` are BF16.
  /// Returns true if a block uses them.
  bool splits_qkv(std::int64_t layer) const;
  void split_qkv_forward(std::int64_t layer, const Tensor& y, const QuantizedTensor& x,
                         const BlockWeights& w) const;
  void split_qkv_backward(std::int64_t layer, const Tensor& dx, const Tensor& dqkv, const BlockWeights& w,
                          const BlockTensors& g, const Tensor& x) const;

  const StepContext& step_;
};

}  // namespace precbench
