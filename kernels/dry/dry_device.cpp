// The dry device: every do_ function is empty, so running a model on it leaves only the accounts that Device
// keeps (FLOPs, bytes) and the arena's (memory). Addresses are never read.
#include "kernels/device/devices.h"

namespace precbench {
namespace {

class DryDevice final : public Device {
 public:
  explicit DryDevice(const Device* like) : like_(like) {}

  std::string name() const override { return "dry"; }
  GemmSupport support(const GemmRecipe& gemm, GemmRole role) const override {
    return like_ ? like_->support(gemm, role) : GemmSupport{};
  }
  /// An aligned address that is not null; always the same, for nothing is ever read or written there.
  void* allocate(std::int64_t) override { return reinterpret_cast<void*>(std::uintptr_t{1} << 20); }
  void deallocate(void*) override {}
  void upload(const Tensor&, const void*) override {}
  void download(void*, const Tensor&) override {}
  void synchronize() override {}

 protected:
  void do_zero(const Tensor&) override {}
  void do_convert(const Tensor&, const Tensor&) override {}
  void do_add(const Tensor&, const Tensor&) override {}
  void do_init_normal(const Tensor&, float, std::uint64_t, std::int64_t) override {}
  void do_fill(const Tensor&, float) override {}
  void do_quantize(QuantizedTensor&, bool) override {}
  void do_amax(const Tensor&, const Tensor&) override {}
  void do_quantize_with_amax(const GemmOperand&, const Tensor&, const Tensor&) override {}
  void do_transpose(const GemmOperand&, const GemmOperand&) override {}
  void do_copy_columns(const Tensor&, std::int64_t, const Tensor&) override {}
  void do_matmul(const Tensor&, const GemmOperand&, const GemmOperand&, const MatmulOptions&) override {}
  void do_embedding(const Tensor&, const Tensor&, const Tensor&) override {}
  void do_embedding_backward(const Tensor&, const Tensor&, const Tensor&) override {}
  void do_add_rmsnorm(QuantizedTensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                      const Tensor&, float) override {}
  void do_recompute_rmsnorm(QuantizedTensor&, const Tensor&, const Tensor&, const Tensor&) override {}
  void do_rmsnorm_backward(QuantizedTensor&, const Tensor&, bool, const Tensor&, const Tensor&, const Tensor&,
                           const Tensor&, const Tensor&) override {}
  void do_rope(const Tensor&, const Tensor&, const RopeOptions&) override {}
  void do_rope_backward(QuantizedTensor&, const Tensor&, const Tensor&, bool, const Tensor&, const Tensor&,
                        const RopeOptions&) override {}
  void do_bias_backward(const Tensor&, bool, const Tensor&) override {}
  void do_attention(QuantizedTensor&, const Tensor&, const Tensor&, const AttentionShape&) override {}
  void do_attention_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const AttentionShape&) override {}
  void do_swiglu(QuantizedTensor&, const Tensor&) override {}
  void do_swiglu_backward(QuantizedTensor&, QuantizedTensor&, const Tensor&, const Tensor&) override {}
  void do_cross_entropy(const Tensor&, const Tensor&, const Tensor&, float) override {}
  void do_sum(const Tensor&, const Tensor&, bool) override {}
  void do_sum_of_squares(const Tensor&, const Tensor&, bool) override {}
  void do_adamw(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                const Tensor&, const AdamwOptions&) override {}
  void do_fingerprint(const Tensor&, const Tensor&) override {}
  void do_quantization_error(const Tensor&, const Tensor&, const GemmOperand&, bool) override {}

 private:
  const Device* like_;
};

}  // namespace

std::unique_ptr<Device> make_dry_device(const Device* like) { return std::make_unique<DryDevice>(like); }

}  // namespace precbench
