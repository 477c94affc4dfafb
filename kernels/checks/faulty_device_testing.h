// A device with a planted fault: the CPU device, taken for one that runs everything natively, which spoils one output
// of one kind of op. Positive controls of the checks.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/checks/host_tensors.h"
#include "kernels/device/device.h"
#include "kernels/device/devices.h"

namespace precbench::testing {

/// Output of an op. value: D of a GEMM, out of attention, the value of a producer.
enum class Place : std::uint8_t { value, second, row_code, row_scale, column_code, column_scale, amax };

/// Size of a fault: one element (the largest of its row for values, the lowest bit of a code or scale); or a row or
/// a tile of 64 x 64, whose signs change.
enum class Extent : std::uint8_t { element, row, tile };

struct Fault {
  OpKind op;
  Place place = Place::value;
  Extent extent = Extent::element;
  std::optional<GemmRole> role = {};  ///< of GEMMs; null: all
  /// Format of the spoiled copy; null: any.
  std::optional<QuantFormat> format = {};
};

class FaultyDevice final : public Device {
 public:
  /// Without a fault it is a device that agrees.
  explicit FaultyDevice(std::optional<Fault> fault = {}, int threads = 1)
      : inner_(make_cpu_device(threads)), fault_(std::move(fault)) {}

  std::string name() const override { return "faulty"; }
  GemmSupport support(const GemmRecipe&, GemmRole) const override { return {}; }
  void* allocate(std::int64_t bytes) override { return inner_->allocate(bytes); }
  void deallocate(void* block) override { inner_->deallocate(block); }
  void upload(const Tensor& dst, const void* src) override { inner_->upload(dst, src); }
  void download(void* dst, const Tensor& src) override { inner_->download(dst, src); }
  void synchronize() override { inner_->synchronize(); }
  std::string attention_name() const override { return "own"; }
  OpSet supported_ops() const override { return inner_->supported_ops(); }
  /// Number of outputs spoiled so far.
  int spoiled() const { return spoiled_; }

 private:
#define PRECBENCH_FAULTY(Op, op_name)                                               \
  void do_##op_name(const ops::Op& op) override {                                   \
    inner_->op_name(op);                                                            \
    if (fault_ && fault_->op == OpKind::op_name && meant(op)) spoil(output_of(op)); \
  }
  PRECBENCH_OPS(PRECBENCH_FAULTY)
#undef PRECBENCH_FAULTY

  template <class Op>
  bool meant(const Op& op) const {
    if constexpr (std::is_same_v<Op, ops::Matmul>) return !fault_->role || op.options.role == *fault_->role;
    return true;
  }

  Tensor output_of(const QuantizedTensor& x) const {
    const bool row = fault_->place == Place::row_code || fault_->place == Place::row_scale;
    if (fault_->format && !((row ? x.rowwise : x.columnwise).format == *fault_->format)) return {};
    switch (fault_->place) {
      case Place::row_code:
        return x.rowwise.data;
      case Place::row_scale:
        return x.rowwise.scale;
      case Place::column_code:
        return x.columnwise.data;
      case Place::column_scale:
        return x.columnwise.scale;
      case Place::amax:
        return x.amax_out.empty() ? x.rowwise.amax : x.amax_out;
      default:
        return x.value;
    }
  }
  Tensor output_of(const ops::Quantize& op) const { return output_of(op.x); }
  Tensor output_of(const ops::AddRmsnorm& op) const { return output_of(op.h); }
  Tensor output_of(const ops::RmsnormBackward& op) const { return output_of(op.dx); }
  Tensor output_of(const ops::AddLayernorm& op) const { return output_of(op.h); }
  Tensor output_of(const ops::LayernormBackward& op) const { return output_of(op.dx); }
  Tensor output_of(const ops::Activate& op) const { return output_of(op.s); }
  Tensor output_of(const ops::ActivateBackward& op) const { return output_of(op.dz); }
  Tensor output_of(const ops::Swiglu& op) const { return output_of(op.s); }
  Tensor output_of(const ops::SwigluBackward& op) const { return output_of(op.dgate_up); }
  Tensor output_of(const ops::RopeBackward& op) const { return output_of(op.dqkv); }
  Tensor output_of(const ops::Attention& op) const {
    return fault_->place == Place::second ? op.lse : output_of(op.out);
  }
  Tensor output_of(const ops::AttentionBackward& op) const { return op.dqkv; }
  Tensor output_of(const ops::Matmul& op) const { return op.d; }
  Tensor output_of(const ops::Rope& op) const { return op.out; }
  Tensor output_of(const ops::Embedding& op) const { return op.x; }
  Tensor output_of(const ops::EmbeddingBackward& op) const { return op.dtable; }
  Tensor output_of(const ops::CrossEntropy& op) const { return op.logits; }
  Tensor output_of(const ops::Sum& op) const { return op.out; }
  Tensor output_of(const ops::Adamw& op) const { return op.master.empty() ? op.weights : op.master; }
  template <class Op>
  Tensor output_of(const Op&) const {
    return {};
  }

  void spoil(const Tensor& x) {
    if (x.empty()) return;
    ++spoiled_;
    if (fault_->place != Place::value && fault_->place != Place::second) {
      x.as<std::uint8_t>()[x.bytes() / 2 / 4 * 4] ^= 1u;  // the lowest bit, also of an FP32 scale
      return;
    }
    using checks::HostMemory;
    if (fault_->extent == Extent::tile) {
      for (std::int64_t r = 64; r < 128; ++r)
        for (std::int64_t i = r * x.cols + 64; i < r * x.cols + 128; ++i)
          HostMemory::set(x, i, -HostMemory::get(x, i));
      return;
    }
    const std::int64_t first = x.rows / 2 * x.cols;
    std::int64_t largest = first;
    for (std::int64_t i = first; i < first + x.cols; ++i) {
      if (std::fabs(HostMemory::get(x, i)) > std::fabs(HostMemory::get(x, largest))) largest = i;
      if (fault_->extent == Extent::row) HostMemory::set(x, i, -HostMemory::get(x, i));
    }
    if (fault_->extent == Extent::element) HostMemory::set(x, largest, HostMemory::get(x, largest) / 2);
  }

  std::unique_ptr<Device> inner_;
  std::optional<Fault> fault_;
  int spoiled_ = 0;
};

}  // namespace precbench::testing
