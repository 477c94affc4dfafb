// GPU work of one training step, by class of operation.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/explain/training_trace.h"

namespace precbench {

enum class WorkClass : std::uint8_t {
  gemm,
  attention,
  cast,
  norm,
  elementwise,
  loss,
  embedding,
  optimizer,
  collective,
  copy,
  unknown,
  idle
};
inline constexpr int kWorkClasses = 12;
const char* name_of(WorkClass work_class);

enum class GemmFormat : std::uint8_t { bf16, fp16, fp32, fp8, fp4, int8, unknown };
const char* name_of(GemmFormat format);

/// Scales of FP8 and FP4 operands: one per tensor, per row, per 1 x 128 and 128 x 128, per 32 (MX) or per 16 elements
/// (NVFP4).
enum class GemmScales : std::uint8_t { tensor, row, block, mx, nvfp4 };

/// D[m,n] = A[m,k] B[k,n], `batch` times.
struct GemmShape {
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  GemmFormat format = GemmFormat::unknown;
  GemmScales scales = GemmScales::tensor;
  bool e5m2 = false;        ///< one operand is E5M2: a gradient
  std::int64_t groups = 1;  ///< experts of a grouped GEMM, which divide m, or k if `k_divided`
  bool k_divided = false;

  double flops() const {
    return 2.0 * static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(n) *
           static_cast<double>(k);
  }
  bool single() const { return batch == 1 && groups == 1; }
  auto operator<=>(const GemmShape&) const = default;
};
/// Returns "FP8", "FP8 rowwise", "MXFP8", "NVFP4".
std::string format_text(const GemmShape& shape);

inline bool is_16_bit(GemmFormat format) { return format == GemmFormat::bf16 || format == GemmFormat::fp16; }

/// Returns true if the sizes are multiples of what tensor cores of the format need for full speed.
inline bool is_aligned(const GemmShape& shape) {
  const std::int64_t unit = shape.format == GemmFormat::fp8 ? 16 : 8;
  return shape.m % unit == 0 && shape.n % unit == 0 && shape.k % unit == 0;
}

/// A kernel, copy or memset of the step.
struct Work {
  std::int64_t start = 0, duration = 0;
  std::int64_t launched = -1;  ///< time at which the call that launched it began; -1: unknown
  std::uint32_t name = 0;
  std::uint32_t op = kNoIndex;  ///< innermost operation that launched it
  std::uint32_t call = kNoIndex;
  std::int32_t stream = 0;
  WorkClass work_class = WorkClass::unknown;
  std::optional<GemmShape> gemm;  ///< of GEMMs whose shape is known
  bool fill = false;              ///< memset
  bool generated = false;         ///< kernel of a compiler (Triton): already fused
  bool float8 = false;            ///< launched by a function that quantizes
  bool backward = false;
  bool math_attention = false;  ///< GEMM or softmax of attention that is not fused
  bool to_scalar = false;       ///< reduction of a whole tensor
  double elements = 0;          ///< of the largest input; 0: unknown
  double bytes = 0;             ///< of all inputs; 0: unknown

  std::int64_t end() const { return start + duration; }
};

/// One step: all GPU work that was launched in it.
struct StepWork {
  std::int64_t begin = 0,
               end = 0;  ///< from when the step before has left the GPU, or begun on the CPU if that is later
  std::vector<Work> work;                     ///< sorted by start
  std::int64_t host_begin = 0, host_end = 0;  ///< of the step on the CPU
  /// Time of the step's window by class: each instant belongs to one class, so they add up to the window.
  std::array<std::int64_t, kWorkClasses> exclusive{};

  std::int64_t duration() const { return end - begin; }
  std::int64_t time(WorkClass work_class) const { return exclusive[static_cast<std::size_t>(work_class)]; }
};

/// How the trace's steps were told.
enum class StepMarks : std::uint8_t { profiler, optimizer, none };

struct TraceSteps {
  StepMarks marks = StepMarks::none;
  std::vector<std::int64_t> durations;  ///< of all complete steps
  std::size_t chosen = 0;               ///< index of the one that is explained
  bool waits_at_end = false;            ///< the host waits for the GPU at the end of each step
  StepWork step;
};

/// Divides the trace into steps, by the profiler's marks, or else at the end of each run of optimizer kernels, or else
/// none, and returns the one of median length. The first is left out if there are others: it begins with an idle GPU.
TraceSteps find_steps(const TrainingTrace& trace);

/// Returns the class of a kernel by the names of the kernel and of the operations that launched it, innermost first.
WorkClass classify(const std::string& kernel, const std::vector<std::string_view>& ops);

/// Returns the shape of the GEMM that an operation computes; null if it is none or the shapes are unknown.
std::optional<GemmShape> gemm_of(std::string_view op, const OpInputs& inputs);

/// Returns true for a class whose time is that of a kernel, not of waiting.
inline bool is_busy(WorkClass work_class) { return work_class != WorkClass::idle; }

}  // namespace precbench
