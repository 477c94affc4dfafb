// AdamW with clipping by the global norm in one pass over flat arrays, and the sum of squares of that norm.
// Everything that changes between steps (learning rate, bias corrections, seed, norm) is read from device
// memory, so a captured graph replays with new values. Bytes per element, all BF16: 8 read and 6 written;
// with FP32 master, moments and gradient: 16 read and 14 written.
//
//   gradient, weight or master, m, v in global memory
//        |  eight elements of each per thread, all loads before the first sum;
//        v  many short blocks, so that some load while others store
//   FP32 registers: clip -> m, v -> update and decay -> rounding
//        |                                               |  if a recipe has per-tensor scales
//        v                                               v
//   weight, master, m, v to global memory        max of new weights -> shared memory -> one atomicMax a block
#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "kernels/cuda/elementwise/scaled_values.cuh"
#include "kernels/cuda/elementwise/weight_update.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench {
namespace cuda {
namespace {

struct Square {
  __device__ float operator()(float x) const { return x * x; }
};

// Square root and quotient from hardware approximations with one correction each: within an ulp, at a third
// of the instructions of the IEEE-rounded versions. Infinity behaves as in IEEE: a second moment that
// overflows stops its weight instead of destroying it.
__device__ inline float fast_sqrt(float x) {
  float inverse;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  const float root = x * inverse;
  return x == 0.0f || isinf(x) ? x : fmaf(fmaf(-root, root, x), 0.5f * inverse, root);
}

__device__ inline float fast_quotient(float x, float y) {
  float inverse;
  asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(y));
  const float quotient = x * inverse;
  return isinf(y) ? quotient : fmaf(fmaf(-quotient, y, x), inverse, quotient);
}

/// Values shared by all elements of a step.
struct Rule {
  StepScalars step;
  float clip, square_factor;
};

/// Updates eight elements and returns the sum of their gradients' squares.
__device__ inline float update(float (&w)[8], float (&mean)[8], float (&square)[8], const float (&g)[8],
                               const UpdateOptions& o, const Rule& rule) {
  float squares = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    squares += g[j] * g[j];
    const float clipped = g[j] * rule.clip;
    mean[j] = o.beta1 * mean[j] + (1.0f - o.beta1) * clipped;
    square[j] = o.beta2 * square[j] + (1.0f - o.beta2) * clipped * clipped;
    const float root = fast_sqrt(square[j] * rule.square_factor) + o.eps;
    const float quotient = fast_quotient(mean[j], rule.step.bias_correction1 * root);
    w[j] -= rule.step.lr * (quotient + o.weight_decay * w[j]);
  }
  return squares;
}

/// Eight elements in their memory format.
template <class T>
struct Packed {
  uint4 words[sizeof(T) / 2];
};
template <class T>
__device__ inline Packed<T> fetch(const T* p) {
  Packed<T> packed;
#pragma unroll
  for (std::size_t i = 0; i < sizeof(T) / 2; ++i) packed.words[i] = reinterpret_cast<const uint4*>(p)[i];
  return packed;
}
template <class T>
__device__ inline void widen(float (&out)[8], const Packed<T>& packed) {
  load_vector(out, reinterpret_cast<const T*>(packed.words));
}

/// Destinations of the new weights' amaxes (ops::WeightAmax).
struct AmaxSpans {
  static constexpr int kMost = 16;

  int count;
  std::int64_t first[kMost], last[kMost], part[kMost];
  std::uint32_t* amax[kMost];  // of a span's parts

  __device__ int parts(int span) const { return static_cast<int>((last[span] - first[span]) / part[span]); }
};

AmaxSpans amax_spans(const ops::Adamw& op) {
  AmaxSpans spans{};
  if (op.amaxes.size() > AmaxSpans::kMost) throw std::invalid_argument("adamw: too many amaxes of one run");
  for (const ops::WeightAmax& of : op.amaxes) {
    spans.first[spans.count] = of.first;
    spans.last[spans.count] = of.last;
    spans.part[spans.count] = of.part_size();
    spans.amax[spans.count++] = of.amax.as<std::uint32_t>();
  }
  return spans;
}

/// Tracks the largest magnitudes of the weights that a thread writes, in ascending order, per part of the
/// spans. A block's first kMost parts are reduced in shared memory; a block has more only if parts are small.
struct SpanMaxima {
  const AmaxSpans& spans;
  std::uint32_t* of_block;  // [kMost]: of parts from `first_part` on, numbered over all spans
  int first_part, part = 0;
  int span = 0;
  std::int64_t until = 0;         // end of the part, or of the gap between two spans
  std::uint32_t* amax = nullptr;  // of the part; null: a gap
  std::uint32_t largest = 0;

  /// `begin`: the block's first element. All threads must call it; one barrier.
  __device__ SpanMaxima(const AmaxSpans& all, std::uint32_t* maxima, std::int64_t begin)
      : spans(all), of_block(maxima) {
    if (threadIdx.x < AmaxSpans::kMost) of_block[threadIdx.x] = 0;
    go_to(begin);
    first_part = part;
    __syncthreads();
  }

  /// Rounding to BF16 is monotonic, so only the maximum is rounded.
  __device__ static void raise(std::uint32_t* to, std::uint32_t most) {
    if (most > 0) atomicMax(to, static_cast<std::uint32_t>(bf16_encode(__uint_as_float(most))) << 16);
  }

  __device__ void leave() {
    if (largest > 0 && part - first_part < AmaxSpans::kMost)
      atomicMax(&of_block[part - first_part], largest);
    else
      raise(amax, largest);
    largest = 0;
  }

  /// Moves to the part or gap that contains element i.
  __device__ void go_to(std::int64_t i) {
    part = 0;
    for (span = 0; span < spans.count && i >= spans.last[span]; ++span) part += spans.parts(span);
    amax = nullptr;
    until = INT64_MAX;
    if (span >= spans.count) return;
    until = spans.first[span];
    if (i < until) return;
    const int of_span = static_cast<int>((i - until) / spans.part[span]);
    until += (of_span + 1) * spans.part[span];
    part += of_span;
    amax = spans.amax[span] + of_span;
  }

  /// Adds eight elements from i on.
  __device__ void see(const float (&w)[8], std::int64_t i) {
    if (i >= until) {
      leave();
      go_to(i);
    }
    if (!amax) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = max(largest, static_cast<std::uint32_t>(abs_bits(w[j])));
  }

  /// All threads must call it; one barrier.
  __device__ void finish() {
    leave();
    __syncthreads();
    if (threadIdx.x >= AmaxSpans::kMost || of_block[threadIdx.x] == 0) return;
    int number = first_part + static_cast<int>(threadIdx.x), of = 0;
    for (; number >= spans.parts(of); ++of) number -= spans.parts(of);
    raise(spans.amax[of] + number, of_block[threadIdx.x]);
  }
};

/// Used if no amaxes are requested.
struct NoMaxima {
  __device__ NoMaxima(const AmaxSpans&, std::uint32_t*, std::int64_t) {}
  __device__ void see(const float (&)[8], std::int64_t) {}
  __device__ void finish() {}
};

// A block processes consecutive chunks. There are enough blocks that the last ones leave little idle time;
// each writes one partial sum of squares.
inline constexpr int kBlocksPerSm = 32;
inline constexpr std::int64_t kChunk = kElementThreads * 8;

template <class Moment, class Gradient, bool kMaster, class Maxima>
__global__ void __launch_bounds__(kElementThreads, sizeof(Moment) == 2 ? 3 : 2)
    adamw_kernel(const WeightArgs a, Moment* m, Moment* v, const Gradient* gradient, std::int64_t run,
                 double* partial, const AmaxSpans spans) {
  wait_for_work_before();
  using Weight = std::conditional_t<kMaster, float, std::uint16_t>;
  __shared__ double buffer[kWarp];
  __shared__ std::uint32_t of_block[AmaxSpans::kMost];
  Maxima maxima(spans, of_block, blockIdx.x * run);
  Weight* weights;
  if constexpr (kMaster)
    weights = a.master;
  else
    weights = a.weights;
  const StepScalars step = *a.scalars;
  const Rule rule{step, clip_factor(a.norm_squared, a.options.max_norm), 1.0f / step.bias_correction2};
  const std::int64_t end = min(a.size, (blockIdx.x + 1) * run);
  double sum = 0;
  for (std::int64_t chunk = blockIdx.x * run; chunk < end; chunk += kChunk) {
    const std::int64_t i = chunk + threadIdx.x * 8;
    float w[8], mean[8], square[8], g[8];
    // All loads of a thread are issued before the first use, without a branch for the end in between.
    if (a.vectors && chunk + kChunk <= a.size) {
      const Packed<Weight> weight = fetch(weights + i);
      const Packed<Moment> means = fetch(m + i), squares = fetch(v + i);
      const Packed<Gradient> gradients = fetch(gradient + i);
      widen<Weight>(w, weight), widen<Moment>(mean, means), widen<Moment>(square, squares);
      widen<Gradient>(g, gradients);
      sum += update(w, mean, square, g, a.options, rule);
      store_vector(m + i, mean), store_vector(v + i, square);
      store_weights<kMaster, true>(w, a, i, step.seed);
      maxima.see(w, i);
      continue;
    }
    load_weights<kMaster>(w, a, i);
    load_elements(mean, m, i, a.size, a.vectors);
    load_elements(square, v, i, a.size, a.vectors);
    load_elements(g, gradient, i, a.size, a.vectors);
    sum += update(w, mean, square, g, a.options, rule);
    store_elements(m, mean, i, a.size, a.vectors);
    store_elements(v, square, i, a.size, a.vectors);
    store_weights<kMaster>(w, a, i, step.seed);
    maxima.see(w, i);
  }
  maxima.finish();
  if (!partial) return;
  sum = block_sum(sum, buffer);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_sum_of_squares(const ops::SumOfSquares& op) {
  if (op.scale.empty())
    cuda::sum_of(*this, op.out, op.x, op.accumulate, cuda::Square());
  else
    cuda::sum_code_squares(*this, op);
  launched("sum_of_squares");
}

void CudaDevice::do_adamw(const ops::Adamw& op) {
  using namespace cuda;
  if (op.scaled()) return scaled_adamw(op);
  const std::int64_t size = op.m.size();
  const WeightArgs args =
      weight_args(op, op.norm_squared, aligned(op.m) && aligned(op.v) && aligned(op.gradient));
  const std::int64_t most = sm_count() * kBlocksPerSm;
  const std::int64_t run = std::max<std::int64_t>(1, (element_blocks(size) + most - 1) / most) * kChunk;
  const auto blocks = static_cast<unsigned>((size + run - 1) / run);
  double* partial = op.options.max_norm > 0
                        ? nullptr
                        : static_cast<double*>(scratch(std::max(1u, blocks) * sizeof(double)));
  if (size > 0) {
    with_type(op.m.dtype, [&](auto moment) {
      with_type(op.gradient.dtype, [&](auto grad) {
        using Moment = decltype(moment);
        using Gradient = decltype(grad);
        const auto launch = [&](auto kernel) {
          kernel<<<blocks, kElementThreads, 0, stream()>>>(args, op.m.as<Moment>(), op.v.as<Moment>(),
                                                           op.gradient.as<Gradient>(), run, partial,
                                                           amax_spans(op));
        };
        const bool amaxes = !op.amaxes.empty();
        if (op.master.empty())
          launch(amaxes ? adamw_kernel<Moment, Gradient, false, SpanMaxima>
                        : adamw_kernel<Moment, Gradient, false, NoMaxima>);
        else
          launch(amaxes ? adamw_kernel<Moment, Gradient, true, SpanMaxima>
                        : adamw_kernel<Moment, Gradient, true, NoMaxima>);
      });
    });
    if (partial) sum_stage2(op.norm_squared.as<float>(), partial, static_cast<int>(blocks), true, stream());
  }
  launched("adamw");
}

}  // namespace precbench
