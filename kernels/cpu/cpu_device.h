// The CPU device: the specification of every op, written to be read, and fast enough to train a small model.
// All ops take FP32 as well as BF16 activations, so that gradients can be checked against finite differences.
// A rank's ops run one after another, each split over `threads` OpenMP threads in a way that never changes a
// sum's order: results do not depend on the number of threads.
#pragma once

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
  std::int64_t workspace_bytes() const override;

 protected:
  void do_zero(const Tensor& x) override;
  void do_convert(const Tensor& dst, const Tensor& src) override;
  void do_add(const Tensor& dst, const Tensor& src) override;
  void do_init_normal(const Tensor& x, float std, std::uint64_t seed, std::int64_t first_index) override;
  void do_fill(const Tensor& x, float value) override;
  void do_quantize(QuantizedTensor& x, bool make_amax) override;
  void do_amax(const Tensor& out, const Tensor& x) override;
  void do_quantize_with_amax(const GemmOperand& form, const Tensor& value, const Tensor& amax) override;
  void do_transpose(const GemmOperand& dst, const GemmOperand& src) override;
  void do_copy_columns(const Tensor& dst, std::int64_t first, const Tensor& src) override;
  void do_matmul(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                 const MatmulOptions& options) override;
  void do_embedding(const Tensor& x, const Tensor& tokens, const Tensor& table) override;
  void do_embedding_backward(const Tensor& dtable, const Tensor& dx, const Tensor& tokens) override;
  void do_add_rmsnorm(QuantizedTensor& h, const Tensor& sum, const Tensor& rstd, const Tensor& x,
                      const Tensor& branch, const Tensor& weight, float eps) override;
  void do_recompute_rmsnorm(QuantizedTensor& h, const Tensor& sum, const Tensor& rstd,
                            const Tensor& weight) override;
  void do_rmsnorm_backward(QuantizedTensor& dx, const Tensor& dweight, bool accumulate,
                           const Tensor& dresidual, const Tensor& dh, const Tensor& x, const Tensor& rstd,
                           const Tensor& weight) override;
  void do_rope(const Tensor& out, const Tensor& qkv, const RopeOptions& options) override;
  void do_rope_backward(QuantizedTensor& dqkv, const Tensor& dq_norm, const Tensor& dk_norm, bool accumulate,
                        const Tensor& dout, const Tensor& qkv, const RopeOptions& options) override;
  void do_bias_backward(const Tensor& dbias, bool accumulate, const Tensor& dy) override;
  void do_attention(QuantizedTensor& out, const Tensor& lse, const Tensor& qkv,
                    const AttentionShape& shape) override;
  void do_attention_backward(const Tensor& dqkv, const Tensor& dout, const Tensor& out, const Tensor& lse,
                             const Tensor& qkv, const AttentionShape& shape) override;
  void do_swiglu(QuantizedTensor& s, const Tensor& gate_up) override;
  void do_swiglu_backward(QuantizedTensor& dgate_up, QuantizedTensor& s, const Tensor& ds,
                          const Tensor& gate_up) override;
  void do_cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& targets,
                        float scale) override;
  void do_sum(const Tensor& out, const Tensor& x, bool accumulate) override;
  void do_sum_of_squares(const Tensor& out, const Tensor& x, bool accumulate) override;
  void do_adamw(const Tensor& weights, const Tensor& master, const Tensor& m, const Tensor& v,
                const Tensor& gradient, const Tensor& scalars, const Tensor& norm_squared,
                const AdamwOptions& options) override;
  void do_fingerprint(const Tensor& out, const Tensor& x) override;
  void do_quantization_error(const Tensor& out, const Tensor& value, const GemmOperand& form,
                             bool columns) override;

 private:
  /// FP32 scratch number `slot`, at least `size` floats, kept from call to call; contents undefined.
  float* scratch(int slot, std::int64_t size);
  /// A form's matrix as FP32 in its storage order; scratch(slot) unless it is FP32 already.
  const float* widen(int slot, const GemmOperand& form);
  /// cos and sin of every position, kept until a call with another shape.
  const std::vector<float>& rope_table(const RopeOptions& options);

  int threads_;
  std::vector<std::vector<float>> scratch_;
  std::vector<float> rope_table_;  // [T][head_dim/2] pairs of cos, sin
  RopeAngles rope_angles_;         // of the table
};

}  // namespace precbench
