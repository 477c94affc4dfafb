"""Runs pieces of CUDA files of other projects on a CPU, compiled as C++ from their source trees: COAT's and
MS-AMP's optimizers, and TransformerEngine's kernels. For check_third_party.py and scripts that make goldens.

A block's threads take turns at every barrier, so execution is sequential.
"""
import ctypes
import pathlib
import re
import subprocess
import tempfile

import numpy as np

CUDA = r"""
#include <math.h>
#include <ucontext.h>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#define __global__
#define __host__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
static Index threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace cpu {

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done = false;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static std::function<void()> body;

inline void yield() { swapcontext(&fibers[threadIdx.x].context, &scheduler); }

struct Barrier {
  unsigned arrived = 0, generation = 0;
  void wait(unsigned all) {
    const unsigned mine = generation;
    if (++arrived == all) {
      arrived = 0;
      ++generation;
    }
    while (mine == generation) yield();
  }
};
static Barrier block_barrier, warp_barriers[32];
static float exchanged[1024];

inline void run_thread() {
  body();
  fibers[threadIdx.x].done = true;
}

inline void launch(unsigned blocks, unsigned threads, std::function<void()> kernel) {
  constexpr size_t kStack = 1 << 18;
  body = std::move(kernel);
  blockDim.x = threads;
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    fibers.resize(threads);
    for (Fiber& fiber : fibers) {
      if (!fiber.stack) fiber.stack.reset(new char[kStack]);
      fiber.done = false;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStack;
      fiber.context.uc_link = &scheduler;
      makecontext(&fiber.context, run_thread, 0);
    }
    for (unsigned left = threads; left > 0;) {
      left = 0;
      for (unsigned i = 0; i < threads; ++i) {
        if (fibers[i].done) continue;
        threadIdx.x = i;
        swapcontext(&scheduler, &fibers[i].context);
        left += !fibers[i].done;
      }
    }
  }
}

/// Returns the value of lane `offset` above in the warp; the lane's own at the end.
inline float shifted_down(float value, unsigned offset) {
  const unsigned thread = threadIdx.x, lane = thread % warpSize, warp = thread / warpSize;
  exchanged[thread] = value;
  warp_barriers[warp].wait(warpSize);
  const float got = lane + offset < warpSize ? exchanged[thread + offset] : value;
  warp_barriers[warp].wait(warpSize);
  return got;
}

}  // namespace cpu

inline void __syncthreads() { cpu::block_barrier.wait(blockDim.x); }
inline float __shfl_down_sync(unsigned, float value, unsigned offset) { return cpu::shifted_down(value, offset); }
inline float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline int __float_as_int(float x) {
  int bits;
  std::memcpy(&bits, &x, sizeof(x));
  return bits;
}
inline int atomicMax(int* at, int value) {
  const int before = *at;
  if (value > before) *at = value;
  return before;
}

namespace cooperative_groups {
struct Block {};
inline Block this_thread_block() { return {}; }
template <int n>
struct thread_block_tile {
  static_assert(n == warpSize);
  int size() const { return n; }
  int thread_rank() const { return static_cast<int>(threadIdx.x % n); }
  float shfl_down(float value, unsigned offset) const { return cpu::shifted_down(value, offset); }
};
template <int n>
thread_block_tile<n> tiled_partition(Block) {
  return {};
}
}  // namespace cooperative_groups

/// Rounds to nearest even and saturates.
struct __nv_fp8_e4m3 {
  std::uint8_t code = 0;
  __nv_fp8_e4m3() = default;
  explicit __nv_fp8_e4m3(float x) {
    const float size = fabsf(x);
    code = signbit(x) ? 0x80 : 0;
    if (size != size) code |= 0x7F;
    else if (size >= 448) code |= 0x7E;
    else if (size > 0) {
      const int e = ilogbf(size) < -6 ? -6 : ilogbf(size);
      const int steps = static_cast<int>(nearbyintf(ldexpf(size, 3 - e)));
      code |= static_cast<std::uint8_t>(steps + 8 * (e + 6));
    }
  }
  explicit operator float() const {
    const int e = code >> 3 & 15, m = code & 7;
    const float size = (code & 0x7F) == 0x7F ? NAN : e == 0 ? ldexpf(m, -9) : ldexpf(8 + m, e - 10);
    return code & 0x80 ? -size : size;
  }
};
"""


def piece(path, begin, end):
    """Returns the text of a file from `begin` up to `end`."""
    text = pathlib.Path(path).read_text()
    first = text.index(begin)
    return text[first : text.index(end, first)]


def compiled(source):
    """Returns a library of pieces of CUDA files and the entry points that call them; compiled without
    FMA contraction."""
    folder = tempfile.TemporaryDirectory()
    file = pathlib.Path(folder.name, "pieces.cpp")
    file.write_text(CUDA + source)
    library = file.with_suffix(".so")
    subprocess.run(["g++", "-std=c++20", "-O1", "-w", "-ffp-contract=off", "-shared", "-fPIC", file, "-o", library], check=True)
    found = ctypes.CDLL(str(library))
    found.folder = folder
    return found


def pointer(array):
    """Returns a pointer to data that the caller keeps alive."""
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


# ---- COAT's optimizer

COAT_ENTRY = """
extern "C" void coat_step(float* p, float* g, void* m, float* m_scale, float* m_power, float* m_middle, void* v,
                          float* v_scale, float* v_power, float* v_middle, float beta1, float beta2, float lr, float eps,
                          int groups) {
  cpu::launch(groups, 128, [=] {
    fp8_adamw_cuda_expand_kernel<float>(p, g, static_cast<__nv_fp8_e4m3*>(m), m_scale, m_power, m_middle,
                                        static_cast<__nv_fp8_e4m3*>(v), v_scale, v_power, v_middle, beta1, beta2, lr, 0,
                                        eps, 1, 128, 16, 128 * groups, groups);
  });
}
"""


class Coat:
    """fp8_adamw_expand_cuda_kernel.cu: the effect of an AdamW step on its moments."""

    def __init__(self, tree):
        kernel = pathlib.Path(tree, "coat/optimizer/kernels/fp8_adamw_expand_cuda_kernel.cu")
        text = piece(kernel, "#define QUANT_MIN_VAL", "void FP8_AdamW_expand_cuda(")
        self.code = compiled(text + COAT_ENTRY)

    def step(self, params, grads, m, v, beta1, beta2, lr, eps):
        """m and v: codes, scale, power, middle of groups of 128; modified, like params."""
        floats = [ctypes.c_float(x) for x in (beta1, beta2, lr, eps)]
        arrays = [pointer(a) for a in (params, grads, *m, *v)]
        self.code.coat_step(*arrays, *floats, ctypes.c_int(len(params) // 128))

    @staticmethod
    def empty(n):
        ones = [np.ones(n // 128, np.float32) for _ in range(3)]
        return [np.zeros(n, np.uint8), *ones]

    def encoded(self, values):
        """Returns m and v of the gradient `values` without momentum: encodings of the values and
        of their squares."""
        m, v = self.empty(len(values)), self.empty(len(values))
        self.step(np.zeros_like(values), values.copy(), m, v, 0, 0, 0, 1)
        return m, v

    def decoded(self, state):
        """Decodes a state as m: with beta1 = 2 and lr = 0.5 a step moves a parameter of 0 by m."""
        m = [a.copy() for a in state]
        n = len(m[0])
        params = np.zeros(n, np.float32)
        self.step(params, np.zeros(n, np.float32), m, self.empty(n), 2, 0, 0.5, 1)
        return params


# ---- MS-AMP's optimizer

MSAMP_TYPES = r"""
#include <algorithm>

// PyTorch types used by the host code; codes only in e4m3 and FP16.
struct Tensor {
  void* at;
  int count, codes;
  int numel() const { return count; }
  int device() const { return 0; }
  int scalar_type() const { return codes; }
  void* data_ptr() const { return at; }
  template <typename T>
  T* data_ptr() const {
    return static_cast<T*>(at);
  }
};
using cudaStream_t = int;
namespace at::cuda {
struct CUDAGuard {
  explicit CUDAGuard(int) {}
};
struct Stream {
  operator cudaStream_t() const { return 0; }
};
inline Stream getCurrentCUDAStream() { return {}; }
}  // namespace at::cuda

using fp16 = _Float16;
inline fp16 __float2half(float x) { return static_cast<fp16>(x); }
inline float __half2float(fp16 x) { return x; }
#define __builtin_assume(condition)
#define TORCH_DTYPE_SWITCH(dtype, type, ...) \
  if ((dtype) == 1) {                        \
    using type = __nv_fp8_e4m3;              \
    __VA_ARGS__                              \
  } else {                                   \
    using type = fp16;                       \
    __VA_ARGS__                              \
  }
#define LAUNCH(kernel, ...) cpu::launch(blocks, threadsPerBlock, [&] { kernel(__VA_ARGS__); })
constexpr unsigned THREADS_PER_WARP = 32;
using namespace std;
"""

MSAMP_ENTRY = """
extern "C" void msamp_stage1(Tensor param, Tensor grad, Tensor m, float m_factor, Tensor m_amax, float beta1, Tensor v,
                             float v_factor, Tensor v_amax, float beta2, float eps, int step, float lr, int corrected) {
  adamw_fp8_stage1_compute(param, grad, m, m_factor, m_amax, beta1, v, v_factor, v_amax, beta2, eps, step, lr, corrected);
}
extern "C" void msamp_stage2(Tensor grad, Tensor m, float m_factor, float new_m_factor, float beta1, Tensor v,
                             float v_factor, float new_v_factor, float beta2, int step, int corrected) {
  adamw_fp8_stage2_compute(grad, m, m_factor, new_m_factor, beta1, v, v_factor, new_v_factor, beta2, step, corrected);
}
"""


class MsAmpKernels:
    """adamw.cu with its host code. Replaces the module msamp_adamw."""

    class Tensor(ctypes.Structure):
        _fields_ = [("at", ctypes.c_void_p), ("count", ctypes.c_int), ("codes", ctypes.c_int)]

    def __init__(self, tree):
        include = pathlib.Path(tree, "msamp/common/include")
        text = piece(include / "common.h", "const int HIP_MAX_GRID_NUM", "template <> __host__ __device__ bf16 cast_dtype(")
        text += piece(include / "common.h", "template <> __host__ __device__ float cast_dtype(const fp16",
                      "template <> __host__ __device__ float cast_dtype(const bf16")
        text += piece(include / "utils.cuh", "template <int num_elems>\n__device__ __forceinline__ float warp_reduce_max(",
                      "// Works only on positive values\n__device__ __forceinline__ void atomicMinFloat(")
        text += piece(pathlib.Path(tree, "msamp/optim/adamw.cu"), "using index_t", "string version()")
        text = re.sub(r"(\w+)<<<blocks, threadsPerBlock, 0, stream>>>\(", r"LAUNCH(\1, ", text)
        self.code = compiled(MSAMP_TYPES + text + MSAMP_ENTRY)

    def call(self, name, *arguments):
        import torch

        def passed(x):
            if isinstance(x, torch.Tensor) and x.dim() > 0:
                assert x.is_contiguous()
                return self.Tensor(x.data_ptr(), x.numel(), {torch.float32: 0, torch.uint8: 1, torch.float16: 2}[x.dtype])
            return ctypes.c_int(x) if isinstance(x, int) else ctypes.c_float(float(x))

        getattr(self.code, name)(*[passed(x) for x in arguments])

    def adamw_fp8_stage1_compute(self, *arguments):
        self.call("msamp_stage1", *arguments)

    def adamw_fp8_stage2_compute(self, *arguments):
        self.call("msamp_stage2", *arguments)


# ---- TransformerEngine's CUDA

TE_ENTRY = """
extern "C" void te_update(float* history, float* scale, float staged, size_t length, int recent, float scaled_max) {
  AmaxParams params{};
  params.param[0] = {1, history, scale};
  cpu::launch(1, amax_and_scale_update_impl::bsize, [&] {
    amax_and_scale_update_impl::kernel_bulk(&staged, params, length,
                                            recent ? AmaxComputeAlgo::MOST_RECENT : AmaxComputeAlgo::MAX, scaled_max);
  });
}
extern "C" void te_stochastic(const float* x, const std::uint8_t* bytes, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = stochastic_round_fp4_e2m1(x[i], bytes[i]);
}
"""


class TransformerEngineCuda:
    """The kernel of delayed scaling, and the software stochastic rounding to e2m1."""

    def __init__(self, tree):
        common = pathlib.Path(tree, "transformer_engine/common")
        scaling = common / "recipe/delayed_scaling.cu"
        text = piece(scaling, "enum class AmaxComputeAlgo", "const char* dtype_name")
        text += piece(scaling, "// struct for amax parameters", "}  // namespace\n\nvoid amax_and_scale_update(")
        text += piece(common / "util/ptx.cuh", "__device__ __forceinline__ float stochastic_round_fp4_e2m1", "#endif")
        self.code = compiled(text + TE_ENTRY)

    def scales(self, amaxes, maximum, length, recent):
        """Returns the scale and the history after each step that leaves one of `amaxes`."""
        history, scale = np.zeros(length, np.float32), np.ones(1, np.float32)
        found, histories = [], []
        for amax in amaxes:
            self.code.te_update(pointer(history), pointer(scale), ctypes.c_float(amax), ctypes.c_size_t(length),
                                   ctypes.c_int(recent), ctypes.c_float(maximum))
            found.append(scale[0])
            histories.append(history.copy())
        return np.array(found, np.float32), np.array(histories)

    def stochastic_e2m1(self, values, random_bytes):
        values, draws = np.ascontiguousarray(values, np.float32), np.ascontiguousarray(random_bytes, np.uint8)
        found = np.empty_like(values)
        self.code.te_stochastic(pointer(values), pointer(draws), pointer(found), ctypes.c_size_t(values.size))
        return found
