// kernel_bench: speed of each kernel of the CUDA device on this GPU, next to the copy ceiling measured in the
// same run. A tool for kernel development, neither a test nor part of precbench.
//
//   kernel_bench               matmul and ops, about half a minute on an H200
//   kernel_bench matmul        TFLOP/s of every GEMM mode at shapes of Llama models
//   kernel_bench ops           GB/s of the memory-bound ops and of attention, and the copy ceiling
//   kernel_bench attention ... TFLOP/s of attention, cuDNN's and ours (attention/attention_bench.cpp)
//   kernel_bench experts ...   MoE ops beside copies of as many bytes (experts/experts_bench.cpp)
//   kernel_bench grouped ...   TFLOP/s of grouped GEMMs (gemm/grouped_bench.cpp)
//
// Operands are random normal numbers, never zeros: GEMMs of zeros draw less power and run over a tenth
// faster. Each figure is the median of kRuns samples timed by events, with operands larger than L2 or evicted
// by what ran between. Exception: rope at T 2048 finds its 25 MB in L2, as in a step, where a GEMM has just
// written them.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/cuda/bench_program.h"
#include "kernels/cuda/op_bench.h"
#include "kernels/gpu/device_info.h"
#include "kernels/gpu/telemetry.h"
#include "kernels/numerics/format_testing.h"

namespace precbench {
namespace {

using testing::kBlock, testing::kBlockPow2, testing::kMx, testing::kRow, testing::kSquare,
    testing::kTensorE4m3, testing::kTensorE5m2;

/// Returns the rowwise copy of a random matrix in any format.
GemmOperand rowwise_copy(Buffers& buffers, Device& device, const QuantFormat& format, const Tensor& value) {
  if (!format.quantized()) return {format, value, {}, false};
  QuantizedTensor operand{.value = value, .rowwise = buffers.quantized_copy(format, value.rows, value.cols)};
  if (format.granularity == Granularity::tensor) operand.amax_out = buffers.tensor(DType::f32, 1, 1);
  device.quantize({operand});
  return operand.rowwise;
}

// ---- GEMMs ----

struct Mode {
  const char* name;
  GemmRecipe gemm;
};

struct Shape {
  std::int64_t out, tokens, in;
};

constexpr Shape kShapes[] = {{8192, 8192, 8192},  {4096, 8192, 4096},  {6144, 8192, 4096},
                             {28672, 8192, 4096}, {4096, 8192, 14336}, {128256, 8192, 4096},
                             {2048, 8192, 2048},  {16384, 8192, 2048}, {2048, 8192, 8192},
                             {2048, 2048, 2048},  {16384, 2048, 2048}};

void bench_matmul(Bench& bench) {
  const Mode modes[] = {{"bf16", {}},
                        {"tensor fast", {kTensorE4m3, kTensorE4m3, true}},
                        {"tensor", {kTensorE4m3, kTensorE4m3, false}},
                        {"e5m2 x e4m3", {kTensorE5m2, kTensorE4m3, false}},
                        {"row fast", {kRow, kRow, true}},
                        {"row", {kRow, kRow, false}},
                        {"row x tensor", {kRow, kTensorE4m3, false}},
                        {"1x128x128x128", {kBlock, kSquare, false}},
                        {"1x128 f32+=", {kBlock, kBlock, false}},
                        {"mx", {kMx, kMx, false}}};
  fmt::print(
      "\nGEMM, dense TFLOP/s (first column) and times bf16; D[tokens, out] BF16, the f32+= column FP32 "
      "accumulated\n");
  fmt::print("{:>22}", "out x tokens x in");
  std::string notes;
  for (const Mode& mode : modes) {
    const GemmSupport support = bench.device.support(mode.gemm, GemmRole::fprop);
    if (support.execution != Execution::native) notes += fmt::format("  {}: {}\n", mode.name, support.reason);
    fmt::print(" {:>13}", mode.name);
  }
  fmt::print("\n");
  for (const Shape& shape : kShapes) {
    fmt::print("{:>22}", fmt::format("{}x{}x{}", shape.out, shape.tokens, shape.in));
    double bf16 = 0;
    for (const Mode& mode : modes) {
      if (bench.device.support(mode.gemm, GemmRole::fprop).execution != Execution::native) {
        fmt::print(" {:>13}", "-");
        continue;
      }
      Buffers buffers(bench.device);
      const bool accumulate = std::string_view(mode.name).find("+=") != std::string_view::npos;
      const Tensor d = buffers.tensor(accumulate ? DType::f32 : DType::bf16, shape.tokens, shape.out);
      if (accumulate) bench.device.zero({d});
      GemmOperand a, b;
      {
        const Tensor x = random_bf16(buffers, bench.device, shape.tokens, shape.in, 1);
        const Tensor w = random_bf16(buffers, bench.device, shape.out, shape.in, 2);
        a = rowwise_copy(buffers, bench.device, mode.gemm.a, x);
        b = rowwise_copy(buffers, bench.device, mode.gemm.b, w);
      }
      const MatmulOptions options{.fast_accum = mode.gemm.fast_accum, .accumulate = accumulate};
      const double ms = bench.median_ms([&] { bench.device.matmul({d, a, b, options}); });
      const double tflops = bench.cost().flops / ms / 1e9;
      if (bf16 == 0) bf16 = tflops;
      fmt::print(" {:>13}", fmt::format("{:.0f} {:.2f}x", tflops, tflops / bf16));
      std::fflush(stdout);
    }
    fmt::print("\n");
  }
  if (!notes.empty()) fmt::print("not native:\n{}", notes);
}

// ---- memory-bound ops ----

/// Delayed scaling: the scale is known before the op.
QuantFormat delayed(QuantFormat format) {
  format.history.length = 1;
  return format;
}

struct FormatSet {
  const char* name;
  QuantFormat rowwise, columnwise;
};

void bench_quantize(Bench& bench, double ceiling, std::int64_t M, std::int64_t C) {
  Device& device = bench.device;
  const FormatSet sets[] = {{"tensor row+col", kTensorE4m3, kTensorE4m3},
                            {"delayed row+col", delayed(kTensorE4m3), delayed(kTensorE4m3)},
                            {"row row+col", kRow, kRow},
                            {"1x128 row+col", kBlock, kBlock},
                            {"128x128 row+col", kSquare, kSquare},
                            {"mx row+col", kMx, kMx},
                            {"row row", kRow, {}},
                            {"1x128 row", kBlock, {}}};
  Buffers buffers(bench.device);
  const Tensor x[2] = {random_bf16(buffers, bench.device, M, C, 1),
                       random_bf16(buffers, bench.device, M, C, 2)};
  const Tensor copy = buffers.tensor(DType::bf16, M, C);
  int turn = 0;  // values alternate, so that none is in L2 when it is read
  report(bench, ceiling, fmt::format("copy {}x{}", M, C), [&] {
    bench.device.convert({copy, x[turn ^= 1]});
  });
  for (const FormatSet& set : sets) {
    Buffers copies(bench.device);
    QuantizedTensor operand = wanted(device, copies, x[0], set.rowwise, set.columnwise);
    // Per-tensor and per-column amaxes must be known before the cast: the value is read twice.
    const bool twice = (set.columnwise.granularity == Granularity::tensor && !set.columnwise.delayed()) ||
                       set.columnwise.granularity == Granularity::row;
    report(
        bench, ceiling, fmt::format("quantize {} {}x{}", set.name, M, C),
        [&] {
          operand.value = x[turn ^= 1];
          bench.device.quantize({operand});
        },
        twice ? static_cast<double>(x[0].bytes()) : 0.0);
  }
  Buffers copies(bench.device);
  const GemmOperand sources[2] = {rowwise_copy(copies, device, kBlockPow2, x[0]),
                                  rowwise_copy(copies, device, kBlockPow2, x[1])};
  const GemmOperand transposed = copies.quantized_copy(kBlockPow2, C, M);
  report(bench, ceiling, fmt::format("transpose_codes {}x{}", M, C), [&] {
    device.transpose_codes({transposed, sources[turn ^= 1]});
  });
}

void bench_block_ops(Bench& bench, double ceiling) {
  constexpr std::int64_t M = 8192, C = 4096, F = 14336;
  Device& device = bench.device;
  Buffers buffers(device);
  const Tensor x = random_bf16(buffers, device, M, C, 1), branch = random_bf16(buffers, device, M, C, 2);
  const Tensor sum = buffers.tensor(DType::bf16, M, C), h = buffers.tensor(DType::bf16, M, C);
  const Tensor weight = random_bf16(buffers, device, 1, C, 3), dweight = buffers.tensor(DType::f32, 1, C);
  const Tensor rstd = buffers.tensor(DType::f32, M, 1);
  const Tensor gate_up = random_bf16(buffers, device, M, 2 * F, 4), s = buffers.tensor(DType::bf16, M, F);
  const Tensor ds = random_bf16(buffers, device, M, F, 5), dgate_up = buffers.tensor(DType::bf16, M, 2 * F);
  for (const FormatSet& set : {FormatSet{"bf16", {}, {}}, FormatSet{"tensor", kTensorE4m3, kTensorE4m3},
                               FormatSet{"delayed", delayed(kTensorE4m3), delayed(kTensorE4m3)},
                               FormatSet{"row", kRow, kRow}, FormatSet{"1x128", kBlock, kBlock}}) {
    Buffers copies(device);
    QuantizedTensor out = wanted(device, copies, h, set.rowwise, set.columnwise),
                    dx = wanted(device, copies, h, set.rowwise, set.columnwise);
    QuantizedTensor act = wanted(device, copies, s, set.rowwise, set.columnwise),
                    dact = wanted(device, copies, dgate_up, set.rowwise, set.columnwise);
    // A recipe's consumers read only the quantized copies.
    out.keep_value = act.keep_value = dact.keep_value = !set.rowwise.quantized();
    report(bench, ceiling, fmt::format("add_rmsnorm -> {}", set.name), [&] {
      device.add_rmsnorm({out, sum, rstd, x, branch, weight, 1e-5f});
    });
    report(bench, ceiling, fmt::format("rmsnorm_backward -> {}", set.name), [&] {
      device.rmsnorm_backward({dx, dweight, true, branch, x, sum, rstd, weight});
    });
    report(bench, ceiling, fmt::format("swiglu -> {}", set.name), [&] { device.swiglu({act, gate_up}); });
    QuantizedTensor again = act;
    again.rowwise = {};  // backward needs s again for wgrad only
    report(bench, ceiling, fmt::format("swiglu_backward -> {}", set.name), [&] {
      device.swiglu_backward({dact, again, ds, gate_up});
    });
  }
}

void bench_attention_ops(Bench& bench, double ceiling) {
  Device& device = bench.device;
  for (const AttentionShape& shape : {AttentionShape{1, 8192, 32, 8, 128}, AttentionShape{1, 2048, 32, 8, 64},
                                      AttentionShape{8, 2048, 32, 8, 64}}) {
    Buffers buffers(device);
    const std::int64_t M = shape.tokens();
    const Tensor qkv = random_bf16(buffers, device, M, shape.qkv_width(), 1);
    const Tensor dout = random_bf16(buffers, device, M, shape.q_width(), 2);
    const Tensor lse = buffers.tensor(DType::f32, shape.heads, M),
                 dqkv = buffers.tensor(DType::bf16, M, shape.qkv_width());
    const QuantizedTensor out{.value = buffers.tensor(DType::bf16, M, shape.q_width())};
    const std::string name =
        fmt::format("B{} T{} H{}/{} D{}", shape.B, shape.T, shape.heads, shape.kv_heads, shape.head_dim);
    const RopeOptions rope{.shape = shape, .q_norm = {}, .k_norm = {}};
    report(bench, ceiling, "rope " + name, [&] { device.rope({dqkv, qkv, rope}); });
    report(bench, ceiling, "attention " + name, [&] { device.attention({out, lse, qkv, shape}); });
    report(bench, ceiling, "attention_backward " + name, [&] {
      device.attention_backward({dqkv, dout, out.value, lse, qkv, shape});
    });
    fmt::print("{:>46}by {}\n", "", device.attention_name());
  }
}

void bench_head_and_optimizer(Bench& bench, double ceiling) {
  constexpr std::int64_t M = 2048, kTokens = 8192, V = 128256, C = 4096;
  constexpr std::int64_t kParameters = std::int64_t{1} << 28;
  Device& device = bench.device;
  {
    Buffers buffers(device);
    const Tensor logits = random_bf16(buffers, device, M, V, 1), loss = buffers.tensor(DType::f32, M, 1);
    std::vector<std::int32_t> ids(kTokens);
    for (std::int64_t i = 0; i < kTokens; ++i) ids[i] = static_cast<std::int32_t>(i * 7919 % V);
    const Tensor tokens = buffers.copy_of(Tensor{ids.data(), DType::i32, kTokens, 1});
    const Tensor table = random_bf16(buffers, device, V, C, 2), x = buffers.tensor(DType::bf16, kTokens, C);
    const Tensor dtable = buffers.tensor(DType::f32, V, C);
    device.zero({dtable});
    report(bench, ceiling, "embedding", [&] { device.embedding({x, tokens, table}); });
    report(bench, ceiling, "embedding_backward", [&] { device.embedding_backward({dtable, x, tokens}); });
    const Tensor targets = tokens.slice_rows(0, M);
    report(bench, ceiling, "cross_entropy", [&] { device.cross_entropy({loss, logits, targets, 1.0f / M}); });
  }
  Buffers buffers(device);
  const Tensor weights = random_bf16(buffers, device, kParameters, 1, 1);
  const Tensor gradient = random_bf16(buffers, device, kParameters, 1, 2);
  const Tensor m = buffers.tensor(DType::bf16, kParameters, 1),
               v = buffers.tensor(DType::bf16, kParameters, 1);
  const Tensor master = buffers.tensor(DType::f32, kParameters, 1);
  const Tensor norm = buffers.tensor(DType::f32, 1, 1);
  StepScalars now{.lr = 1e-5f, .bias_correction1 = 0.1f, .bias_correction2 = 0.05f, .seed = 1};
  const Tensor scalars = buffers.copy_of(Tensor{&now, DType::f32, 1, 4});
  device.zero({m});
  device.zero({v});
  device.convert({master, weights});
  report(bench, ceiling, "sum_of_squares", [&] { device.sum_of_squares({norm, gradient, false}); });
  report(bench, ceiling, "adamw bf16 weights, moments, gradients", [&] {
    device.adamw({weights, {}, m, v, gradient, scalars, norm, {}});
  });
  report(bench, ceiling, "adamw f32 master", [&] {
    device.adamw({weights, master, m, v, gradient, scalars, norm, {}});
  });
}

void bench_ops(Bench& bench) {
  const double ceiling = copy_ceiling(bench);
  fmt::print(
      "\nCopy ceiling, 2 GiB read and 2 GiB written: {:.0f} GB/s. Bytes are each operand's, once; quantize "
      "reads its value twice for scales of the tensor or of columns\n",
      ceiling);
  bench_quantize(bench, ceiling, 8192, 4096);
  bench_quantize(bench, ceiling, 8192, 14336);
  bench_block_ops(bench, ceiling);
  bench_attention_ops(bench, ceiling);
  bench_head_and_optimizer(bench, ceiling);
}

void bench_kernels(const std::string& part) {
  const GpuProperties gpu = gpu_properties(0);
  fmt::print("{}, {} SMs, driver {}, CUDA {}, cuBLASLt {}, cuDNN {}\n", gpu.name, gpu.sm_count, gpu.driver,
             gpu.cuda_runtime, gpu.cublaslt, gpu.cudnn.empty() ? "(not in this build)" : gpu.cudnn);
  const auto monitor = GpuMonitor::open(gpu.pci_bus_id);
  if (monitor && monitor->gpu().other_processes() > 0)
    fmt::print("warning: {} other process(es) compute on this GPU; the figures are not its best\n",
               monitor->gpu().other_processes());
  if (monitor) monitor->start();
  {
    const auto device = make_gpu_device(0);
    Bench bench(*device);
    if (part.empty() || part == "matmul") bench_matmul(bench);
    if (part.empty() || part == "ops") bench_ops(bench);
  }
  if (monitor) {
    const GpuTelemetry seen = monitor->stop();
    fmt::print(
        "\nSM clock {:.0f} MHz median ({:.0f} to {:.0f}), power {:.0f} W mean, {:.0f} W highest, {:.0f} C",
        seen.sm_clock_mhz.value_or(0), seen.sm_clock_min_mhz.value_or(0), seen.sm_clock_max_mhz.value_or(0),
        seen.power_w.value_or(0), seen.power_max_w.value_or(0), seen.temperature_c.value_or(0));
    for (const std::string& reason : seen.throttle_reasons) fmt::print(", {}", reason);
    fmt::print("\n");
  }
}

void run(const std::string& part, const std::vector<std::string>& words) {
  const VisibleGpus gpus = find_gpus();
  if (gpus.count == 0) throw Unsupported(gpus.reason);
  if (part == "attention") return bench_attention(words);
  if (part == "experts") return bench_experts(words);
  if (part == "grouped") return bench_grouped(words);
  if ((!part.empty() && part != "matmul" && part != "ops") || !words.empty())
    throw InvalidInput(fmt::format(
        "unknown part \"{}\": give matmul, ops, attention, experts or grouped, or nothing for the first two", part));
  bench_kernels(part);
}

}  // namespace
}  // namespace precbench

int main(int argc, char** argv) {
  try {
    precbench::run(argc > 1 ? argv[1] : "", {argv + std::min(argc, 2), argv + argc});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "kernel_bench: {}\n", error.what());
    return dynamic_cast<const precbench::InvalidInput*>(&error) ? 2 : 1;
  }
}
