// A device: memory, and the ops of ops.h. Three devices implement it.
//   cpu   the specification: readable and exact, default without a visible GPU, reference of every GPU test
//   cuda  the fast one; its files have the names of the cpu files so that the two can be read side by side
//   dry   runs no op; from their costs it predicts FLOPs, bytes, memory and time
//
//   device.swiglu({.s = s, .gate_up = gate_up});
//
// reports ops::Swiglu with its cost to the observer and runs the device's do_swiglu, so all devices account
// alike.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "kernels/device/ops.h"

namespace precbench {

/// Sees every op of a device: the counter behind --dry-run, the profiler behind the time breakdown.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void begin(const OpCost& cost) = 0;
  virtual void end(const OpCost& cost) = 0;
};

enum class Execution : std::uint8_t { native, emulated, unsupported };
const char* name_of(Execution execution);

/// How a device runs one GEMM of a recipe, and the reason if it is not native.
struct GemmSupport {
  Execution execution = Execution::native;
  std::string reason;
};

using OpSet = std::bitset<kOpKinds>;

/// Scratch sizes of an op beside its operands, in FP32 elements per buffer.
inline constexpr int kScratchSlots = 3;
using ScratchSizes = std::array<std::int64_t, kScratchSlots>;

class Device {
 public:
  virtual ~Device() = default;

  // ---- description
  virtual std::string name() const = 0;  ///< "cpu", "cuda", "dry"
  virtual GemmSupport support(const GemmRecipe& gemm, GemmRole role) const = 0;
  /// Returns in one line why attention of this shape, forward or backward, is unsupported; empty: it is
  /// supported.
  virtual std::string attention_refusal(const AttentionShape&) { return {}; }
  /// Returns the attention implementation, for the record: "cpu", "cudnn 9.14", "own".
  virtual std::string attention_name() const { return name(); }
  /// Returns the kernels that have run a role's GEMMs so far, if there are several: "cuBLASLt (2), own
  /// 256x128 (1)".
  virtual std::string gemm_names(GemmRole) const { return {}; }
  /// Returns shapes "M x N x K, ..." of a role's quantized GEMMs that were emulated so far although support()
  /// calls the formats native; empty if there were none.
  virtual std::string emulated_shapes(GemmRole) const { return {}; }
  /// Returns how the experts' GEMMs have run so far, if there is a choice: "own", "loop" (expert by expert)
  /// or "own, loop".
  virtual std::string grouped_name() const { return {}; }
  /// Returns in one line, for the record, which capability is missing and what replaces it; null if none is missing.
  virtual std::optional<std::string> fallback_reason() const { return std::nullopt; }
  /// Returns true if the step as run so far can be captured as a CUDA graph: no op of it waited for the host.
  virtual bool capturable() const { return true; }
  /// Returns the ops implemented here. The others throw Unsupported before they do anything.
  virtual OpSet supported_ops() const = 0;
  bool supports(OpKind op) const { return supported_ops()[static_cast<std::size_t>(op)]; }

  // ---- memory and order. Ops run asynchronously in call order; synchronize() waits and throws any pending
  // error.
  virtual void* allocate(std::int64_t bytes) = 0;  ///< throws OutOfMemory
  virtual void deallocate(void* block) = 0;        ///< never throws
  virtual void upload(const Tensor& dst, const void* src) = 0;
  virtual void download(void* dst, const Tensor& src) = 0;  ///< waits for all ops before it
  virtual void synchronize() = 0;
  /// Returns the bytes of library and kernel scratch that the device itself holds (segment workspace).
  virtual std::int64_t workspace_bytes() const;

  void set_observer(OpObserver* observer) { observer_ = observer; }
  OpObserver* observer() const { return observer_; }

  // ---- the ops: zero(const ops::Zero&), convert(const ops::Convert&), ...
#define PRECBENCH_DECLARE(Op, name) void name(const ops::Op& op);
  PRECBENCH_OPS(PRECBENCH_DECLARE)
#undef PRECBENCH_DECLARE

  /// Returns an op's scratch beside its operands, if known in advance: scratch_of(const ops::Zero&), ... The
  /// buffers are kept, so a device holds the largest size of each that any op has used.
#define PRECBENCH_SCRATCH(Op, name) \
  virtual ScratchSizes scratch_of(const ops::Op&) const { return {}; }
  PRECBENCH_OPS(PRECBENCH_SCRATCH)
#undef PRECBENCH_SCRATCH

 protected:
  /// The implementations: do_zero, do_convert, ... A device overrides those that it supports.
#define PRECBENCH_BODY(Op, name) \
  virtual void do_##name(const ops::Op&) { refuse(OpKind::name); }
  PRECBENCH_OPS(PRECBENCH_BODY)
#undef PRECBENCH_BODY

  /// Returns the largest scratch of the ops so far, including the current one.
  const ScratchSizes& scratch_sizes() const { return scratch_sizes_; }

  /// Returns false if ops are only accounted for and no implementation is called.
  virtual bool executes() const { return true; }

  /// Returns the ops whose implementations `Concrete` overrides; they are public there.
  template <class Concrete>
  static OpSet bodies_of() {
    OpSet set;
#define PRECBENCH_OVERRIDDEN(Op, name)          \
  set[static_cast<std::size_t>(OpKind::name)] = \
      !std::is_same_v<decltype(&Concrete::do_##name), void (Device::*)(const ops::Op&)>;
    PRECBENCH_OPS(PRECBENCH_OVERRIDDEN)
#undef PRECBENCH_OVERRIDDEN
    return set;
  }

 private:
  template <class Op>
  void run(const Op& op, void (Device::*body)(const Op&));
  [[noreturn]] void refuse(OpKind op) const;  ///< throws Unsupported

  OpObserver* observer_ = nullptr;
  ScratchSizes scratch_sizes_{};
};

/// Owns device memory with undefined contents. The constructor throws OutOfMemory.
class DeviceBlock {
 public:
  DeviceBlock(Device& device, std::int64_t bytes) : device_(device), data_(device.allocate(bytes)) {}
  ~DeviceBlock() { device_.deallocate(data_); }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  void* data() const { return data_; }

 private:
  Device& device_;
  void* data_;
};

/// Returns how a device runs one GEMM of a recipe with what its operands need. Weights stored in a format that is slow to
/// dequantize (Recipe::weight_only) make fprop and dgrad emulated.
GemmSupport recipe_support(const Device& device, const Recipe& recipe, GemmRole role);

}  // namespace precbench
