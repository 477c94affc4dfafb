// experts_bench: how fast the ops of a mixture are on this GPU, beside the copy ceiling measured in the same run; about ten
// seconds on an H200. Bytes are those that an op must move (ops::Permute::cost() and its like), with the padding that it
// writes named beside them. Experts are those that random logits choose.
#include <exception>
#include <string>

#include "kernels/cuda/op_bench.h"
#include "kernels/gpu/device_info.h"
#include "kernels/numerics/format_testing.h"

namespace precbench {
namespace {

struct Shape {
  const char* name;
  std::int64_t T, C, E, K, F;
};

constexpr Shape kShapes[] = {{"qwen3-30b-a3b", 8192, 2048, 128, 8, 768},
                             {"moe-4b-a1b", 8192, 2048, 32, 8, 1024},
                             {"mixtral-8x7b", 8192, 4096, 8, 2, 14336}};

struct FormSet {
  const char* name;
  QuantFormat rowwise, columnwise;
};

/// A grouped value with room for its forms; the value is kept where no form is wanted.
QuantizedTensor grouped(Device& device, Buffers& buffers, const Tensor& value, const FormSet& set,
                        std::int64_t experts) {
  QuantizedTensor x = wanted(device, buffers, value, set.rowwise, set.columnwise);
  if (set.columnwise.granularity == Granularity::row)
    x.columnwise.scale = buffers.tensor(DType::f32, 1, experts * value.cols);
  x.keep_value = !set.rowwise.quantized() && !set.columnwise.quantized();
  return x;
}

void bench_shape(Bench& bench, double ceiling, const Shape& shape) {
  Device& device = bench.device;
  Buffers buffers(device);
  const std::int64_t T = shape.T, C = shape.C, E = shape.E, K = shape.K, F = shape.F;
  const RoutingRule rule{.experts = E, .top_k = K};
  const Tensor x = random_bf16(buffers, device, T, C, 1), router = random_bf16(buffers, device, E, C, 2);
  const Tensor z = buffers.tensor(DType::f32, T, E), index = buffers.tensor(DType::i32, T, K);
  const Tensor weights = buffers.tensor(DType::f32, T, K),
               report_of_route = buffers.tensor(DType::f32, 1, E + 2);
  const Tensor bad = buffers.tensor(DType::i32, 1, 1), dw = buffers.tensor(DType::f32, T, K);
  const Tensor sum = buffers.tensor(DType::f32, T, C), drouter = buffers.tensor(DType::f32, E, C);
  device.init_normal({dw, 1.0f, 3, 0});
  device.zero({drouter});
  fmt::print("{}: {} tokens of {}, {} of {} experts\n", shape.name, T, C, K, E);
  report(bench, ceiling, "route", [&] {
    device.route({.z = z,
                  .index = index,
                  .weights = weights,
                  .report = report_of_route,
                  .bad = bad,
                  .x = x,
                  .router = router,
                  .bias = {},
                  .forced = {},
                  .rule = rule});
  });
  report(bench, ceiling, "route: its product alone", [&] {
    device.matmul({z, {{}, x, {}, false}, {{}, router, {}, false}, {}});
  });
  report(bench, ceiling, "route_backward", [&] {
    device.route_backward({.dx = sum,
                           .drouter = drouter,
                           .accumulate = true,
                           .addend = x,
                           .dw = dw,
                           .z = z,
                           .index = index,
                           .report = report_of_route,
                           .x = x,
                           .router = router,
                           .rule = rule});
  });
  constexpr std::int64_t kPad = 128;
  const std::int64_t rows = rows_capacity(T * K, E, kPad);
  const Groups groups{.offsets = buffers.tensor(DType::i32, 1, E + 1),
                      .counts = buffers.tensor(DType::i32, 1, E),
                      .row_of = buffers.tensor(DType::i32, T, K),
                      .source = buffers.tensor(DType::i32, 1, rows),
                      .pad = kPad,
                      .rows_expected = T * K};
  const Tensor group_report = buffers.tensor(DType::f32, 1, 3);
  report(bench, ceiling, "group", [&] { device.group({groups, group_report, index, T}); });
  float counts[2];
  device.download(counts, group_report);
  fmt::print("{:>42} rows of {:.0f} with padding, capacity {}\n", static_cast<std::int64_t>(counts[0]),
             counts[1], rows);

  const Tensor gathered = buffers.tensor(DType::bf16, rows, C), s = buffers.tensor(DType::bf16, rows, F);
  const Tensor gate_up = random_bf16(buffers, device, rows, 2 * F, 4),
               ds = random_bf16(buffers, device, rows, F, 5);
  const Tensor dgate_up = buffers.tensor(DType::bf16, rows, 2 * F), out = buffers.tensor(DType::bf16, T, C);
  using testing::kBlock, testing::kMx, testing::kRow, testing::kTensorE4m3;
  for (const FormSet& set :
       {FormSet{"bf16", {}, {}}, FormSet{"tensor", kTensorE4m3, kTensorE4m3}, FormSet{"row", kRow, kRow},
        FormSet{"1x128", kBlock, kBlock}, FormSet{"mx", kMx, kMx}}) {
    Buffers forms(device);
    const bool quantized = set.rowwise.quantized();
    QuantizedTensor src = wanted(device, forms, x, set.rowwise, {});
    if (quantized) device.quantize({src});
    const QuantizedTensor codes = grouped(device, forms, gathered, {set.name, set.rowwise, {}}, E);
    report(bench, ceiling, fmt::format("permute -> {}", set.name), [&] {
      device.permute({codes, src, {}, groups});
    });
    if (quantized) {
      const QuantizedTensor columns = grouped(device, forms, gathered, {set.name, {}, set.columnwise}, E);
      report(bench, ceiling, fmt::format("permute -> {} columns", set.name), [&] {
        device.permute({columns, src, {}, groups});
      });
    }
    const QuantizedTensor act = grouped(device, forms, s, {set.name, set.rowwise, {}}, E),
                          again = grouped(device, forms, s, {set.name, {}, set.columnwise}, E),
                          dact = grouped(device, forms, dgate_up, set, E);
    report(bench, ceiling, fmt::format("grouped_swiglu -> {}", set.name), [&] {
      device.grouped_swiglu({act, gate_up, weights, groups});
    });
    report(bench, ceiling, fmt::format("grouped_swiglu_backward -> {}", set.name), [&] {
      device.grouped_swiglu_backward({dact, again, dw, ds, gate_up, weights, groups});
    });
  }
  report(bench, ceiling, "unpermute",
         [&] { device.unpermute({.out = out, .rows = gathered, .addend = {}, .groups = groups}); });
  report(bench, ceiling, "unpermute + f32 addend",
         [&] { device.unpermute({.out = out, .rows = gathered, .addend = sum, .groups = groups}); });
  const Tensor stack = random_bf16(buffers, device, E * 2 * F, C, 6);
  for (const FormSet& set : {FormSet{"tensor", kTensorE4m3, kTensorE4m3}, FormSet{"row", kRow, kRow},
                             FormSet{"128x128", testing::kSquare, testing::kSquare}, FormSet{"mx", kMx, kMx}})
    for (const bool columns : {false, true}) {
      Buffers forms(device);
      const QuantFormat& format = columns ? set.columnwise : set.rowwise;
      const std::int64_t N = columns ? C : 2 * F, k = columns ? 2 * F : C;
      GemmOperand form = forms.form(format, E * N, k);
      form.scale = forms.tensor(scale_dtype(format), 1, stacked_scale_count(format.granularity, E, N, k));
      QuantizedTensor w{.value = stack};
      (columns ? w.columnwise : w.rowwise) = form;
      report(bench, ceiling, fmt::format("quantize_experts {}{}", set.name, columns ? " columns" : ""), [&] {
        device.quantize_experts({w, E});
      });
    }
}

int run() {
  const VisibleGpus gpus = find_gpus();
  if (gpus.count == 0) throw Unsupported(gpus.reason);
  const auto device = make_gpu_device(0);
  Bench bench(*device);
  const double ceiling = copy_ceiling(bench);
  fmt::print("{}; copy ceiling {:.0f} GB/s\n", gpu_properties(0).description, ceiling);
  for (const Shape& shape : kShapes) bench_shape(bench, ceiling, shape);
  return 0;
}

}  // namespace
}  // namespace precbench

int main() {
  try {
    return precbench::run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "experts_bench: {}\n", error.what());
    return 1;
  }
}
