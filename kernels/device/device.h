// A device: memory, and the ops of ops.h. Three devices implement it.
//   cpu   the specification: readable and exact, the default where no GPU is visible, the oracle of every GPU test
//   cuda  the fast one; its files have the names of the cpu files so that the two can be read side by side
//   dry   runs no op; from their costs it predicts FLOPs, bytes, memory and time
//
//   device.swiglu({.s = s, .gate_up = gate_up});
//
// reports ops::Swiglu with its cost to the observer and runs the device's do_swiglu, so all devices account alike.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "kernels/device/ops.h"

namespace precbench {

/// Sees every op of a device: the counter behind --dry-run, the profiler behind the breakdown.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void begin(const OpCost& cost) = 0;
  virtual void end(const OpCost& cost) = 0;
};

enum class Execution : std::uint8_t { native, emulated, unsupported };
const char* name_of(Execution execution);

/// Whether and how a device runs one GEMM of a recipe; the reason where it is not native.
struct GemmSupport {
  Execution execution = Execution::native;
  std::string reason;
};

using OpSet = std::bitset<kOpKinds>;

/// FP32 elements of the buffers that an op's body takes beside its operands.
inline constexpr int kScratchSlots = 3;
using ScratchSizes = std::array<std::int64_t, kScratchSlots>;

class Device {
 public:
  virtual ~Device() = default;

  // ---- what it is
  virtual std::string name() const = 0;  ///< "cpu", "cuda", "dry"
  virtual GemmSupport support(const GemmRecipe& gemm, GemmRole role) const = 0;
  /// Why attention of this shape does not run here, forward or backward, in one line; empty: it does.
  virtual std::string attention_refusal(const AttentionShape&) { return {}; }
  /// The one that runs attention, for the record: "cpu", "cudnn 9.14", "own".
  virtual std::string attention_name() const { return name(); }
  /// Those that ran the GEMMs of a role so far, where a device has several: "cuBLASLt (2), own 256x128 (1)".
  virtual std::string gemm_names(GemmRole) const { return {}; }
  /// Shapes of a role's quantized GEMMs, "M x N x K, ...", that were emulated so far though support() calls the formats
  /// native; empty where there were none.
  virtual std::string emulated_shapes(GemmRole) const { return {}; }
  /// Who ran the products of experts so far, where a device has a choice: "own", "loop" (expert by expert) or "own, loop".
  virtual std::string grouped_name() const { return {}; }
  /// Returns the feature of such devices that this one lacks, and the replacement, in one line for the record; null if it
  /// lacks none.
  virtual std::optional<std::string> fallback_reason() const { return std::nullopt; }
  /// Whether a step as it ran so far may be captured as a graph: no op of it waited for the host.
  virtual bool capturable() const { return true; }
  /// The ops that have a body here. The others throw Unsupported before they do anything.
  virtual OpSet supported_ops() const = 0;
  bool supports(OpKind op) const { return supported_ops()[static_cast<std::size_t>(op)]; }

  // ---- memory and order. Ops run asynchronously in call order; synchronize() waits and throws what went wrong.
  virtual void* allocate(std::int64_t bytes) = 0;  ///< throws OutOfMemory
  virtual void deallocate(void* block) = 0;        ///< never throws
  virtual void upload(const Tensor& dst, const void* src) = 0;
  virtual void download(void* dst, const Tensor& src) = 0;  ///< waits for all ops before it
  virtual void synchronize() = 0;
  /// Bytes of library and kernel scratch the device itself holds (segment workspace).
  virtual std::int64_t workspace_bytes() const;

  void set_observer(OpObserver* observer) { observer_ = observer; }
  OpObserver* observer() const { return observer_; }

  // ---- the ops: zero(const ops::Zero&), convert(const ops::Convert&), ...
#define PRECBENCH_DECLARE(Op, name) void name(const ops::Op& op);
  PRECBENCH_OPS(PRECBENCH_DECLARE)
#undef PRECBENCH_DECLARE

  /// What an op takes beside its operands, where a device knows it before: scratch_of(const ops::Zero&), ... The buffers
  /// are kept, so that a device holds of each the largest that an op has taken.
#define PRECBENCH_SCRATCH(Op, name) \
  virtual ScratchSizes scratch_of(const ops::Op&) const { return {}; }
  PRECBENCH_OPS(PRECBENCH_SCRATCH)
#undef PRECBENCH_SCRATCH

 protected:
  /// Their bodies: do_zero, do_convert, ... A device overrides those it has.
#define PRECBENCH_BODY(Op, name) \
  virtual void do_##name(const ops::Op&) { refuse(OpKind::name); }
  PRECBENCH_OPS(PRECBENCH_BODY)
#undef PRECBENCH_BODY

  /// The largest that ops so far have taken, this one included.
  const ScratchSizes& scratch_sizes() const { return scratch_sizes_; }

  /// false: ops are accounted for and no body is called.
  virtual bool executes() const { return true; }

  /// The ops whose bodies `Concrete` overrides; they are public there.
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

/// Memory of a device for as long as this lives, contents undefined. The constructor throws OutOfMemory.
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

}  // namespace precbench
