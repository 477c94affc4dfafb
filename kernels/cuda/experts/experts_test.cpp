// MoE ops captured in a graph with one routing and replayed with others must give the results of separate
// calls. All operands have capacity shapes, so that no routing is special.
#include "kernels/device/moe_testing.h"
#include "kernels/gpu/graph.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kTokens = 300, kWidth = 256, kExperts = 12, kSlots = 3, kInner = 128;

/// The ops of a layer except its GEMMs, with their own memory.
struct Chain {
  Device& device;
  RoutingRule rule{.experts = kExperts, .top_k = kSlots};
  Tensor x, router, z, index, weights, report, bad, group_report;
  Groups groups;
  QuantizedTensor src, rows, columns, s, dgate_up, again;
  Tensor gate_up, ds, dw, sum, drouter, out;

  Chain(OpTest& b, const Tensor& gates, const Tensor& gradients, const Tensor& router_on_host,
        const OutputFormats& formats)
      : device(b.device()) {
    const std::int64_t capacity = rows_capacity(kTokens * kSlots, kExperts, 128);
    const auto grouped = [&](const QuantFormat& row, const QuantFormat& column, std::int64_t cols) {
      QuantizedTensor t = b.operand({row, column}, capacity, cols);
      if (column.granularity == Granularity::row)
        t.columnwise.scale = b.output(DType::f32, 1, kExperts * cols);
      return t;
    };
    x = b.output(DType::bf16, kTokens, kWidth);
    router = b.put(router_on_host);
    z = b.output(DType::f32, kTokens, kExperts);
    index = b.output(DType::i32, kTokens, kSlots);
    weights = b.output(DType::f32, kTokens, kSlots);
    report = b.output(DType::f32, 1, kExperts + 2);
    bad = b.output(DType::i32, 1, 1);
    group_report = b.output(DType::f32, 1, 3);
    groups = {.offsets = b.output(DType::i32, 1, kExperts + 1),
              .counts = b.output(DType::i32, 1, kExperts),
              .row_of = b.output(DType::i32, kTokens, kSlots),
              .source = b.output(DType::i32, 1, capacity),
              .pad = 128,
              .rows_expected = kTokens * kSlots};
    src = {.value = x, .rowwise = b.quantized_copy(formats.rowwise, kTokens, kWidth)};
    if (formats.one_scale()) src.amax_out = b.output(DType::f32, 1, 1);
    rows = grouped(formats.rowwise, {}, kWidth);
    columns = grouped({}, formats.columnwise, kWidth);
    s = grouped(formats.rowwise, {}, kInner);
    dgate_up = grouped(formats.rowwise, formats.columnwise, 2 * kInner);
    again = grouped({}, formats.columnwise, kInner);
    gate_up = b.put(gates);
    ds = b.put(gradients);
    dw = b.output(DType::f32, kTokens, kSlots);
    sum = b.output(DType::f32, kTokens, kWidth);
    drouter = b.output(DType::f32, kExperts, kWidth);
    out = b.output(DType::bf16, kTokens, kWidth);
  }

  void run() {
    device.route({.z = z,
                  .index = index,
                  .weights = weights,
                  .report = report,
                  .bad = bad,
                  .x = x,
                  .router = router,
                  .bias = {},
                  .forced = {},
                  .rule = rule});
    device.group({groups, group_report, index, kTokens});
    device.quantize({src});
    device.permute({rows, src, {}, groups});
    device.permute({columns, {.value = x}, {}, groups});
    device.grouped_swiglu({s, gate_up, weights, groups});
    device.grouped_swiglu_backward({dgate_up, again, dw, ds, gate_up, weights, groups});
    device.route_backward({.dx = sum,
                           .drouter = drouter,
                           .accumulate = false,
                           .addend = x,
                           .dw = dw,
                           .z = z,
                           .index = index,
                           .report = report,
                           .x = x,
                           .router = router,
                           .rule = rule,
                           .balance = 0.01f,
                           .z_loss = 0.01f,
                           .loss_scale = 1.0f});
    device.unpermute({.out = out, .rows = rows.value, .addend = sum, .groups = groups});
  }

  std::vector<Tensor> results() const {
    std::vector<Tensor> all = {index,
                               weights,
                               report,
                               groups.offsets,
                               groups.counts,
                               groups.row_of,
                               groups.source,
                               rows.value,
                               columns.value,
                               s.value,
                               again.value,
                               dgate_up.value,
                               dw,
                               sum,
                               drouter,
                               out};
    for (const QuantizedTensor* t : {&rows, &columns, &s, &dgate_up, &again})
      for (const GemmOperand* operand : {&t->rowwise, &t->columnwise})
        if (!operand->empty()) all.push_back(operand->data), all.push_back(operand->scale);
    return all;
  }
};

}  // namespace

TEST_CASE("MoE ops: a captured graph replays correctly with another routing", "[gpu][graph][moe]") {
  const auto device = gpu_or_skip();
  if (!device) return;
  OpTest b(*device);
  for (const OutputFormats& formats :
       {OutputFormats{}, {kTensorE4m3, kTensorE4m3}, {kRow, kRow}, {kBlock, kBlock}, {kMx, kMx}}) {
    INFO(describe(formats.rowwise));
    b.start();
    HostMemory& host = b.host();
    const std::int64_t capacity = rows_capacity(kTokens * kSlots, kExperts, 128);
    const Tensor gates = host.random(DType::bf16, capacity, 2 * kInner, 1.0f),
                 gradients = host.random(DType::bf16, capacity, kInner, 1.0f),
                 router = host.random(DType::bf16, kExperts, kWidth, 0.3f);
    Chain eager(b, gates, gradients, router, formats), replayed(b, gates, gradients, router, formats);
    const Tensor inputs[] = {host.random(DType::bf16, kTokens, kWidth, 1.0f),
                             host.random(DType::bf16, kTokens, kWidth, 3.0f),
                             host.tensor(DType::bf16, kTokens, kWidth)};
    // Identical tokens: all go to the same experts, and the other experts have no row.
    for (std::int64_t i = 0; i < inputs[2].size(); ++i)
      HostMemory::set(inputs[2], i, HostMemory::get(inputs[0], i % kWidth));
    device->upload(replayed.x, inputs[0].data);
    replayed.run();
    const std::unique_ptr<StepGraph> graph = capture_step(*device, [&] { replayed.run(); });
    std::vector<std::int32_t> last;
    for (const Tensor& input : inputs) {
      for (Chain* chain : {&eager, &replayed}) device->upload(chain->x, input.data);
      eager.run();
      graph->replay();
      device->synchronize();
      const std::vector<std::int32_t> counts = integers(b.fetch(eager.groups.counts));
      CHECK(counts != last);
      last = counts;
      const std::vector<Tensor> expected = eager.results(), got = replayed.results();
      for (std::size_t i = 0; i < got.size(); ++i) {
        INFO("result " << i);
        CHECK(same_bits(b.fetch(got[i]), b.fetch(expected[i])));
      }
    }
    CHECK(std::count(last.begin(), last.end(), 0) == kExperts - kSlots);
  }
}
