// blockwise_bench: TFLOP/s of block-scaled GEMMs on GPU 0, ours next to cuBLASLt's, shape by shape.
//
//   blockwise_bench [SECONDS [ROUNDS]]      default: half a second for each figure, twice
//
// Sustained: one GEMM after another for the given time, of which the last three quarters count, so that the
// GPU runs at the clock of its power limit. Each takes its turn in every round, cuBLASLt's with the candidate
// that it timed fastest. Operands are quantized normal random numbers, and both read the same. "between
// copies": each GEMM follows a copy of 1 GiB, as a step mixes GEMMs with memory-bound ops.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm/sustained.h"
#include "kernels/device/buffers.h"
#include "kernels/numerics/format_testing.h"

namespace precbench {
namespace {

struct GemmShape {
  std::int64_t tokens, out, in;
};

/// The last four are the linear layers of Llama-3.1-8B.
constexpr GemmShape kShapes[] = {
    {8192, 8192, 8192}, {8192, 4096, 4096}, {8192, 6144, 4096}, {8192, 28672, 4096}, {8192, 4096, 14336}};

struct Mode {
  const char* name;
  GemmRole role;
  QuantFormat b;
  DType d;
  bool accumulate;
};

const Mode kModes[] = {
    {"fprop 1x128 x 128x128, BF16", GemmRole::fprop, testing::kSquare, DType::bf16, false},
    {"dgrad 1x128 x 128x128, BF16", GemmRole::dgrad, testing::kSquare, DType::bf16, false},
    {"wgrad 1x128 x 1x128, FP32", GemmRole::wgrad, testing::kBlock, DType::f32, false},
    {"wgrad 1x128 x 1x128, FP32 added", GemmRole::wgrad, testing::kBlock, DType::f32, true},
    {"wgrad 1x128 x 1x128, BF16", GemmRole::wgrad, testing::kBlock, DType::bf16, false},
    {"wgrad 1x128 x 1x128, BF16 added", GemmRole::wgrad, testing::kBlock, DType::bf16, true},
};

/// An M x N x K GEMM: a layer's GEMM of one role. Weight gradients are [out, in], summed over the tokens.
struct Product {
  std::int64_t M, N, K;
  double flops() const {
    return 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K);
  }
};

Product product_of(const GemmShape& shape, GemmRole role) {
  if (role == GemmRole::wgrad) return {shape.out, shape.in, shape.tokens};
  if (role == GemmRole::dgrad) return {shape.tokens, shape.in, shape.out};
  return {shape.tokens, shape.out, shape.in};
}

GemmOperand random_form(Buffers& buffers, Device& device, const QuantFormat& format, std::int64_t rows,
                        std::int64_t k, std::uint64_t seed) {
  Buffers temporary(device);
  const Tensor value = temporary.tensor(DType::bf16, rows, k);
  device.init_normal({value, 1.0f, seed, 0});
  const QuantizedTensor operand{.value = value, .rowwise = buffers.form(format, rows, k)};
  device.quantize({operand});
  device.synchronize();
  return operand.rowwise;
}

/// Returns the mean milliseconds of one op with a copy before each.
double between_copies_ms(Device& device, const Tensor& to, const Tensor& from,
                         const std::function<void()>& op) {
  constexpr int kRuns = 100, kCounted = 75;
  const auto clock = make_device_clock(device);
  for (int i = 0; i < kRuns; ++i) {
    device.convert({to, from});
    clock->mark();
    op();
    clock->mark();
  }
  device.synchronize();
  double sum = 0;
  for (int i = kRuns - kCounted; i < kRuns; ++i) sum += clock->milliseconds(2 * i, 2 * i + 1);
  return sum / kCounted;
}

void bench(double seconds, int rounds) {
  const auto library = make_gpu_device(0, {.gemm = "cublaslt"}), own = make_gpu_device(0, {.gemm = "own"});
  Device* const devices[] = {library.get(), own.get()};
  Buffers lasting(*own);
  const Tensor copied = lasting.tensor(DType::bf16, 16384, 32768),
               copy = lasting.tensor(DType::bf16, 16384, 32768);
  own->zero({copied});
  for (const Mode& mode : kModes) {
    fmt::print("\n{}\n{:>20} {:>9} {:>9} {:>7}   {:>9} {:>9} {:>7}  {}\n", mode.name, "M x N x K", "cuBLASLt",
               "own", "ratio", "in copies", "own", "ratio", "kernels");
    for (const GemmShape& shape : kShapes) {
      const Product product = product_of(shape, mode.role);
      Buffers buffers(*own);
      const GemmOperand a = random_form(buffers, *own, testing::kBlock, product.M, product.K, 1);
      const GemmOperand b = random_form(buffers, *own, mode.b, product.N, product.K, 2);
      const Tensor d = buffers.tensor(mode.d, product.M, product.N);
      own->zero({d});
      own->synchronize();
      double sustained[2] = {}, mixed[2] = {};
      const auto op = [&](int i) {
        return [&, i] { devices[i]->matmul({d, a, b, {.role = mode.role, .accumulate = mode.accumulate}}); };
      };
      for (int round = 0; round < rounds; ++round)
        for (int i = 0; i < 2; ++i)
          sustained[i] += product.flops() / sustained_ms(*devices[i], seconds, op(i)) / 1e9 / rounds;
      for (int i = 0; i < 2; ++i)
        mixed[i] = product.flops() / between_copies_ms(*devices[i], copy, copied, op(i)) / 1e9;
      fmt::print("{:>20} {:9.0f} {:9.0f} {:6.2f}x   {:9.0f} {:9.0f} {:6.2f}x  {}\n",
                 fmt::format("{}x{}x{}", product.M, product.N, product.K), sustained[0], sustained[1],
                 sustained[1] / sustained[0], mixed[0], mixed[1], mixed[1] / mixed[0],
                 own->gemm_names(mode.role));
      std::fflush(stdout);
    }
  }
}

int run(double seconds, int rounds) {
  if (!(seconds > 0) || rounds < 1) throw InvalidInput("give seconds above 0 and a number of rounds");
  const VisibleGpus gpus = find_gpus();
  if (gpus.count == 0) throw Unsupported(gpus.reason);
  const GpuProperties gpu = gpu_properties(0);
  fmt::print("{}, {} SMs, driver {}, CUDA {}, cuBLASLt {}; TFLOP/s, sustained {} s a figure, {} round(s)\n",
             gpu.name, gpu.sm_count, gpu.driver, gpu.cuda_runtime, gpu.cublaslt, seconds, rounds);
  bench(seconds, rounds);
  return 0;
}

}  // namespace
}  // namespace precbench

int main(int argc, char** argv) {
  try {
    return precbench::run(argc > 1 ? std::atof(argv[1]) : 0.5, argc > 2 ? std::atoi(argv[2]) : 2);
  } catch (const precbench::InvalidInput& error) {
    fmt::print(stderr, "blockwise_bench: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "blockwise_bench: {}\n", error.what());
    return 1;
  }
}
