// The dry device executes no op, so running a model on it leaves only the accounts that Device keeps (FLOPs,
// bytes) and the arena's (memory). Addresses are never accessed.
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
  OpSet supported_ops() const override { return like_ ? like_->supported_ops() : OpSet().set(); }
  /// Returns an aligned non-null address, always the same, since it is never accessed.
  void* allocate(std::int64_t) override { return reinterpret_cast<void*>(std::uintptr_t{1} << 20); }
  void deallocate(void*) override {}
  void upload(const Tensor&, const void*) override {}
  void download(void*, const Tensor&) override {}
  void synchronize() override {}
#define PRECBENCH_LIKE(Op, name)                                   \
  ScratchSizes scratch_of(const ops::Op& op) const override {      \
    return like_ ? like_->scratch_of(op) : Device::scratch_of(op); \
  }
  PRECBENCH_OPS(PRECBENCH_LIKE)
#undef PRECBENCH_LIKE

 protected:
  bool executes() const override { return false; }

 private:
  const Device* like_;
};

}  // namespace

std::unique_ptr<Device> make_dry_device(const Device* like) { return std::make_unique<DryDevice>(like); }

}  // namespace precbench
