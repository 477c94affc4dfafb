// kernel_bench experts: speed of the MoE ops on this GPU, each next to a copy of as many bytes timed alternately
// with it. Both are captured in a graph, as in a step, and run back to back. About ten seconds on an H200. A
// copy that fits in L2 is faster than memory, and a small one is launch-bound: so are the ops.
//
//   kernel_bench experts            every op
//   kernel_bench experts WORD...    ops whose names begin with one of the words
//
// Bytes are those that an op must move (ops::Permute::cost() and the like): inputs count once however often
// they are read, and padding is not counted. For permute, which writes much padding, the rate including
// padding is printed too. Permute to columnwise reads a token's row once per expert, all but the first time
// from L2, and counts it once. Random logits choose the experts.
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/bench_program.h"
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

struct FormatSet {
  const char* name;
  QuantFormat rowwise, columnwise;
};

/// Returns a grouped value with memory for its quantized copies; the value is kept if no copy is requested.
QuantizedTensor grouped(Device& device, Buffers& buffers, const Tensor& value, const FormatSet& set,
                        std::int64_t experts) {
  QuantizedTensor x = wanted(device, buffers, value, set.rowwise, set.columnwise);
  if (set.columnwise.granularity == Granularity::row)
    x.columnwise.scale = buffers.tensor(DType::f32, 1, experts * value.cols);
  x.keep_value = !set.rowwise.quantized() && !set.columnwise.quantized();
  return x;
}

/// Time and bytes of one or several ops, and time of copies.
struct Taken {
  double ms = 0, copy_ms = 0, bytes = 0;
  Taken operator+(const Taken& more) const {
    return {ms + more.ms, copy_ms + more.copy_ms, bytes + more.bytes};
  }
};

/// Times ops next to copies.
class OpTable {
 public:
  OpTable(Bench& bench, std::vector<std::string> words)
      : bench_(bench),
        words_(std::move(words)),
        buffers_(bench.device),
        from_(random_bf16(buffers_, bench.device, 32768, 32768, 1)),
        to_(buffers_.tensor(DType::bf16, 32768, 32768)) {}

  /// Prints a line; `padding`: bytes of padding that the op writes. Does nothing if the op was not requested.
  Taken report(const std::string& name, const std::function<void()>& op, double padding = 0) {
    if (!words_.empty() && std::none_of(words_.begin(), words_.end(),
                                        [&](const std::string& word) { return name.starts_with(word); })) {
      op();  // other ops read its output
      return {};
    }
    const double ms = bench_.median_ms(op);
    const OpCost cost = bench_.cost();
    const Taken taken{ms, copy_ms(cost.bytes), cost.bytes};
    print(name, taken);
    if (padding > 0) fmt::print(" ({:.0f}% with padding)", 100 * copy_ms(cost.bytes + padding) / ms);
    if (cost.flops > 0) fmt::print(" {:7.0f} TFLOP/s", cost.flops / ms / 1e9);
    fmt::print("\n");
    std::fflush(stdout);
    return taken;
  }
  static void print(const std::string& name, const Taken& taken) {
    fmt::print("{:>42} {:9.4f} ms {:8.0f} GB/s, a copy {:9.4f} ms, {:4.0f}%", name, taken.ms,
               taken.bytes / taken.ms / 1e6, taken.copy_ms, 100 * taken.copy_ms / taken.ms);
  }
  /// Returns the GB/s of a copy larger than any cache.
  double ceiling() { return kMostBytes / copy_ms(kMostBytes) / 1e6; }

 private:
  static constexpr double kMostBytes = 4.0 * 32768 * 32768;

  double copy_ms(double bytes) {
    // With other sizes the driver's copy runs at as little as 0.6 of its speed.
    constexpr std::int64_t kWhole = 16384;
    const std::int64_t wholes = static_cast<std::int64_t>(std::min(bytes, kMostBytes) / 4) / kWhole;
    const std::int64_t elements = std::max<std::int64_t>(1, wholes) * kWhole;
    return bench_.median_ms([&] {
      bench_.device.convert({to_.elements(0, elements), from_.elements(0, elements)});
    });
  }

  Bench& bench_;
  std::vector<std::string> words_;
  Buffers buffers_;
  const Tensor from_, to_;
};

void bench_shape(OpTable& table, Device& device, const Shape& shape) {
  Buffers buffers(device);
  const std::int64_t T = shape.T, C = shape.C, E = shape.E, K = shape.K, F = shape.F;
  const RoutingRule rule{.experts = E, .top_k = K};
  const Tensor x = random_bf16(buffers, device, T, C, 1), router = buffers.tensor(DType::bf16, E, C);
  device.init_normal({router, 0.02f, 2, 0});  // as at the start of training
  const Tensor z = buffers.tensor(DType::f32, T, E), index = buffers.tensor(DType::i32, T, K);
  const Tensor weights = buffers.tensor(DType::f32, T, K),
               report_of_route = buffers.tensor(DType::f32, 1, E + 2);
  const Tensor bad = buffers.tensor(DType::i32, 1, 1), dw = buffers.tensor(DType::f32, T, K);
  const Tensor sum = buffers.tensor(DType::f32, T, C), drouter = buffers.tensor(DType::f32, E, C);
  device.init_normal({dw, 1.0f, 3, 0});
  device.zero({drouter});
  fmt::print("{}: {} tokens of {}, {} of {} experts\n", shape.name, T, C, K, E);
  Taken routing = table.report("route", [&] {
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
  table.report("route: its product alone", [&] {
    device.matmul({z, {{}, x, {}, false}, {{}, router, {}, false}, {}});
  });
  table.report("route_backward", [&] {
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
  routing = routing + table.report("group", [&] { device.group({groups, group_report, index, T}); });
  float counts[2];
  device.download(counts, group_report);
  fmt::print("{:>42} rows of {:.0f} with padding, capacity {}\n", static_cast<std::int64_t>(counts[0]),
             counts[1], rows);

  const Tensor gathered = buffers.tensor(DType::bf16, rows, C), s = buffers.tensor(DType::bf16, rows, F);
  const Tensor gate_up = random_bf16(buffers, device, rows, 2 * F, 4),
               ds = random_bf16(buffers, device, rows, F, 5);
  const Tensor dgate_up = buffers.tensor(DType::bf16, rows, 2 * F), out = buffers.tensor(DType::bf16, T, C);
  std::vector<std::pair<std::string, Taken>> permutes;
  // Bytes of padding in a grouped value or in its quantized copies.
  const auto padding_of = [&](const QuantizedTensor& t) {
    std::int64_t bytes = t.keep_value ? t.value.bytes() : 0;
    for (const GemmOperand* operand : {&t.rowwise, &t.columnwise})
      bytes += operand->data.bytes() + operand->scale.bytes();
    return static_cast<double>(bytes) * (counts[1] - counts[0]) / static_cast<double>(rows);
  };
  using testing::kBlock, testing::kMx, testing::kRow, testing::kTensorE4m3;
  for (const FormatSet& set :
       {FormatSet{"bf16", {}, {}}, FormatSet{"tensor", kTensorE4m3, kTensorE4m3},
        FormatSet{"row", kRow, kRow}, FormatSet{"1x128", kBlock, kBlock}, FormatSet{"mx", kMx, kMx}}) {
    Buffers copies(device);
    const bool quantized = set.rowwise.quantized();
    QuantizedTensor src = wanted(device, copies, x, set.rowwise, {});
    if (quantized) device.quantize({src});
    const QuantizedTensor rowwise = grouped(device, copies, gathered, {set.name, set.rowwise, {}}, E);
    const auto permute = [&](const QuantizedTensor& to, const char* what) {
      return table.report(
          fmt::format("permute -> {}{}", set.name, what),
          [&] {
            device.permute({to, src, {}, groups});
          },
          padding_of(to));
    };
    permutes.push_back({set.name, permute(rowwise, "")});
    if (quantized) permute(grouped(device, copies, gathered, {set.name, {}, set.columnwise}, E), " columns");
    const QuantizedTensor act = grouped(device, copies, s, {set.name, set.rowwise, {}}, E),
                          again = grouped(device, copies, s, {set.name, {}, set.columnwise}, E),
                          dact = grouped(device, copies, dgate_up, set, E);
    table.report(fmt::format("grouped_swiglu -> {}", set.name), [&] {
      device.grouped_swiglu({act, gate_up, weights, groups});
    });
    table.report(fmt::format("grouped_swiglu_backward -> {}", set.name), [&] {
      device.grouped_swiglu_backward({dact, again, dw, ds, gate_up, weights, groups});
    });
  }
  routing = routing + table.report("unpermute", [&] {
    device.unpermute({.out = out, .rows = gathered, .addend = {}, .groups = groups});
  });
  table.report("unpermute + f32 addend",
               [&] { device.unpermute({.out = out, .rows = gathered, .addend = sum, .groups = groups}); });
  for (const auto& [name, permute] : permutes) {
    if (routing.ms == 0 || permute.ms == 0) continue;
    OpTable::print(fmt::format("routing there and back, {}", name), routing + permute);
    fmt::print("\n");
  }
}

/// Quantizes the experts' gate and up weights.
void bench_weights(OpTable& table, Device& device, const Shape& shape) {
  using testing::kMx, testing::kRow, testing::kTensorE4m3;
  Buffers buffers(device);
  const std::int64_t C = shape.C, E = shape.E, F = shape.F;
  const Tensor stack = random_bf16(buffers, device, E * 2 * F, C, 6);
  for (const FormatSet& set :
       {FormatSet{"tensor", kTensorE4m3, kTensorE4m3}, FormatSet{"row", kRow, kRow},
        FormatSet{"128x128", testing::kSquare, testing::kSquare}, FormatSet{"mx", kMx, kMx}})
    for (const auto& [rows, columns, which] :
         {std::tuple{true, false, "rows"}, std::tuple{false, true, "columns"},
          std::tuple{true, true, "both"}}) {
      Buffers copies(device);
      const auto operand = [&](const QuantFormat& format, std::int64_t N, std::int64_t k) {
        GemmOperand of = copies.quantized_copy(format, E * N, k);
        of.scale = copies.tensor(scale_dtype(format), 1, stacked_scale_count(format.granularity, E, N, k));
        return of;
      };
      QuantizedTensor w{.value = stack};
      if (rows) w.rowwise = operand(set.rowwise, 2 * F, C);
      if (columns) w.columnwise = operand(set.columnwise, C, 2 * F);
      table.report(fmt::format("quantize_experts {}, {}", set.name, which), [&] {
        device.quantize_experts({w, E});
      });
    }
}

}  // namespace

void bench_experts(const std::vector<std::string>& words) {
  const auto device = make_gpu_device(0);
  Bench bench(*device, Launch::captured);
  OpTable table(bench, words);
  fmt::print("{}; a copy of 2 GiB: {:.0f} GB/s\n", gpu_properties(0).description, table.ceiling());
  for (const Shape& shape : kShapes) {
    bench_shape(table, *device, shape);
    bench_weights(table, *device, shape);
  }
}

}  // namespace precbench
