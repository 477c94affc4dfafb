// Trace of training steps in one form, whichever profiler wrote it: GPU work with the calls that launched it and the
// PyTorch operations around them. Times are nanoseconds from the first event.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace precbench {

/// Index that refers to nothing.
inline constexpr std::uint32_t kNoIndex = std::numeric_limits<std::uint32_t>::max();
/// Limits on what is kept of a trace, so that a hostile or a very long one takes at most about 1 GB. Events beyond
/// them are counted.
inline constexpr std::size_t kMostGpuEvents = 2'000'000, kMostHostEvents = 6'000'000, kMostNames = 200'000,
                             kMostInputs = 200'000, kMostNameBytes = 300;
/// Limits on times, so that no sum or difference of them overflows: events start within 95 years of the clock's zero,
/// those of the CPU last as long at most, and kMostGpuEvents of the GPU together are within 64 bits.
inline constexpr std::int64_t kMostTraceNs = 3'000'000'000'000'000'000, kMostGpuEventNs = 3'600'000'000'000;

enum class GpuWork : std::uint8_t { kernel, copy, set };

/// A kernel, copy or memset on a GPU.
struct GpuEvent {
  std::int64_t start = 0, duration = 0;
  std::uint32_t name = 0;         ///< index in TrainingTrace::names
  std::uint32_t call = kNoIndex;  ///< runtime call that launched it, index in TrainingTrace::calls
  std::uint32_t op = kNoIndex;    ///< innermost operation, index in TrainingTrace::ops
  std::int32_t stream = 0, device = 0;
  GpuWork work = GpuWork::kernel;

  std::int64_t end() const { return start + duration; }
};

/// An operation of PyTorch, a call of the CUDA runtime, or an annotation.
struct HostEvent {
  std::int64_t start = 0, duration = 0;
  std::int64_t thread = 0;
  std::uint32_t name = 0;
  std::uint32_t inputs = kNoIndex;  ///< index in TrainingTrace::inputs
  std::uint32_t parent = kNoIndex;  ///< operation or annotation around it, index in TrainingTrace::ops

  std::int64_t end() const { return start + duration; }
};

/// Shapes and dtypes of an operation's inputs. An input that is no tensor has no dimensions.
struct OpInputs {
  std::vector<std::vector<std::int64_t>> dims;
  std::vector<std::string> types;      ///< PyTorch's names: "c10::BFloat16"; may be fewer than `dims`
  std::vector<std::int64_t> elements;  ///< of inputs that are lists of tensors: of all tensors; else 0

  bool operator<(const OpInputs& other) const;
};

/// A trace as it was read. ops, calls and gpu are sorted by start.
struct TrainingTrace {
  std::string file;    ///< as the user named it
  std::string format;  ///< "Kineto" or "Nsight Systems"
  std::string gpu_name;
  int rank = -1, ranks = 0;  ///< of the process among those that train together; -1: unknown
  std::vector<std::string> names;
  std::vector<OpInputs> inputs;
  std::vector<GpuEvent> gpu;
  std::vector<HostEvent> ops;                   ///< operations and annotations of the CPU
  std::vector<HostEvent> calls;                 ///< of the CUDA runtime and driver
  std::map<std::string, std::int64_t> skipped;  ///< events of categories that are not used, by category
  std::int64_t malformed = 0;                   ///< events without a name or a possible time
  std::int64_t beyond = 0;                      ///< events beyond the limits
  std::int64_t other_devices = 0;               ///< GPU events of other GPUs than the busiest

  const std::string& name(std::uint32_t index) const { return names[index]; }

  /// Returns true if the name of the operation `op`, or of one around it, is what `is` looks for. kNoIndex: none.
  template <class Is>
  bool any_around(std::uint32_t op, const Is& is) const {
    for (; op != kNoIndex; op = ops[op].parent)
      if (is(name(ops[op].name))) return true;
    return false;
  }
};

/// Collects a trace's events and links them.
class TraceBuilder {
 public:
  explicit TraceBuilder(TrainingTrace& trace) : trace_(trace) {}

  std::uint32_t name(std::string_view text);
  /// Returns kNoIndex if there are too many different inputs.
  std::uint32_t inputs(OpInputs inputs);
  /// Correlation and external ids of 0 mean none.
  void add_gpu(const GpuEvent& event, std::uint64_t correlation, std::uint64_t external);
  void add_call(const HostEvent& event, std::uint64_t correlation, std::uint64_t external);
  void add_op(const HostEvent& event, std::uint64_t external);

  /// Sorts the events, keeps the GPU with the most of them, links kernels to calls and operations, and nests
  /// operations.
  void finish();

 private:
  struct GpuIds {
    std::uint64_t correlation, external;
  };
  TrainingTrace& trace_;
  std::unordered_map<std::string, std::uint32_t> names_;
  std::map<OpInputs, std::uint32_t> inputs_;
  std::vector<GpuIds> gpu_ids_;
  std::vector<GpuIds> call_ids_;
  std::vector<std::uint64_t> op_ids_;
};

}  // namespace precbench
