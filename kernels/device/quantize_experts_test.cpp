// Quantized stacked weights against the CPU device, bit for bit: one and both directions, every mix of
// granularities, stacks of one and of several runs of tiles, and sizes that no tile divides.
#include <algorithm>

#include "kernels/checks/check_quantize.h"
#include "kernels/device/compare_testing.h"
#include "kernels/device/moe_testing.h"
#include "kernels/numerics/format_testing.h"

using namespace precbench;
using namespace precbench::testing;
using checks::Input, checks::kInputs, checks::make_input;

namespace {

struct Stack {
  std::int64_t experts, rows, cols;  ///< rows and columns of an expert
};

constexpr QuantFormat kFormats[] = {{},       kTensorE4m3, kTensorE5m2, kRow, kRowExact,
                                    kRowE4m2, kSquare,     kBlock,      kMx};

/// Allocates one quantized copy with memory(dtype, rows, cols).
template <class Memory>
GemmOperand operand_of(Memory&& memory, const QuantFormat& format, std::int64_t experts, std::int64_t rows,
                       std::int64_t k) {
  if (!format.quantized()) return {};
  return {format, memory(format.dtype, experts * rows, k),
          memory(scale_dtype(format), 1, stacked_scale_count(format.granularity, experts, rows, k))};
}

void check_stack(OpTest& b, const OutputFormats& formats, const Stack& stack, const Tensor& value,
                 const Tensor& value_there) {
  INFO(stack.experts << " experts of " << stack.rows << " x " << stack.cols << ", row "
                     << describe(formats.rowwise) << ", col " << describe(formats.columnwise));
  const auto quantized = [&](Device& device, const Tensor& of, auto&& memory) {
    const QuantizedTensor w{
        .value = of,
        .rowwise = operand_of(memory, formats.rowwise, stack.experts, stack.rows, stack.cols),
        .columnwise = operand_of(memory, formats.columnwise, stack.experts, stack.cols, stack.rows)};
    device.quantize_experts({w, stack.experts});
    return w;
  };
  const QuantizedTensor there =
      quantized(b.device(), value_there, [&](auto... shape) { return b.output(shape...); });
  const QuantizedTensor here =
      quantized(b.cpu(), value, [&](auto... shape) { return b.host().tensor(shape...); });
  for (const auto operand : {&QuantizedTensor::rowwise, &QuantizedTensor::columnwise}) {
    if ((here.*operand).empty()) continue;
    CHECK(same_bits(b.fetch((there.*operand).data), (here.*operand).data));
    CHECK(same_scales(b.fetch((there.*operand).scale), (here.*operand).scale));
  }
}

}  // namespace

PRECBENCH_OP_TEST(stacks_on, "quantize_experts is bit-exact in every combination of formats") {
  for (const Stack& stack :
       {Stack{5, 128, 256}, Stack{3, 144, 208}, Stack{4, 133, 101}, Stack{2, 1, 16}, Stack{7, 3, 5}})
    for (const QuantFormat& row : kFormats)
      for (const QuantFormat& col : kFormats) {
        b.start();
        const Tensor value = make_input(b.host(), Input::imbalanced, stack.experts * stack.rows, stack.cols);
        check_stack(b, {row, col}, stack, value, b.put(value));
      }
}

PRECBENCH_OP_TEST(amaxes_on, "quantize_experts leaves the experts' amaxes, and takes known ones") {
  QuantFormat delayed = kTensorE4m3;
  delayed.history = {.length = 16, .margin = 2};
  for (const Stack& stack : {Stack{5, 128, 256}, Stack{4, 133, 101}, Stack{40, 16, 24}})
    for (const QuantFormat& format : {kTensorE4m3, kTensorE5m2, delayed})
      for (const bool known : {false, true})
        for (const bool wanted : {false, true}) {
          if (format.delayed() && !known) continue;
          INFO(stack.experts << " experts of " << stack.rows << " x " << stack.cols << ", "
                             << describe(format) << (known ? ", known" : "") << (wanted ? ", left" : ""));
          b.start();
          const std::int64_t E = stack.experts;
          const Tensor value = make_input(b.host(), Input::imbalanced, E * stack.rows, stack.cols);
          const Tensor in = b.host().tensor(DType::f32, 1, E), out = b.host().tensor(DType::f32, 1, E);
          for (std::int64_t e = 0; e < E; ++e) {
            in.as<float>()[e] = 0.5f + static_cast<float>(e);
            out.as<float>()[e] = e % 2 == 0 ? 1e9f : 1e-9f;  // raised if amaxes are known, else replaced
          }
          const Tensor dev_in = b.put(in), dev_out = b.put(out);
          const auto quantized = [&](Device& device, const Tensor& of, const Tensor& amax_in,
                                     const Tensor& amax_out, auto&& memory) {
            const QuantizedTensor w{.value = of,
                                    .rowwise = operand_of(memory, format, E, stack.rows, stack.cols),
                                    .columnwise = operand_of(memory, format, E, stack.cols, stack.rows),
                                    .amax_out = wanted ? amax_out : Tensor{},
                                    .amax_in = known ? amax_in : Tensor{}};
            device.quantize_experts({w, E});
            return w;
          };
          const QuantizedTensor there = quantized(b.device(), b.put(value), dev_in, dev_out,
                                                  [&](auto... shape) { return b.output(shape...); });
          const Tensor left = b.fetch(dev_out);
          // Reference: one expert at a time with the op for a single matrix.
          for (std::int64_t e = 0; e < E; ++e) {
            const Tensor amax = b.host().tensor(DType::f32, 1, 1);
            const Tensor one = value.slice_rows(e * stack.rows, stack.rows);
            b.cpu().amax({amax, one});
            const float largest = *amax.as<float>(), before = out.as<float>()[e];
            if (wanted) CHECK(left.as<float>()[e] == (known ? std::max(before, largest) : largest));
            if (known) *amax.as<float>() = in.as<float>()[e];
            const auto memory = [&](auto... shape) { return b.host().tensor(shape...); };
            const QuantizedTensor w{.value = one,
                                    .rowwise = operand_of(memory, format, 1, stack.rows, stack.cols),
                                    .columnwise = operand_of(memory, format, 1, stack.cols, stack.rows),
                                    .amax_in = amax};
            b.cpu().quantize({w});
            for (const auto operand : {&QuantizedTensor::rowwise, &QuantizedTensor::columnwise}) {
              const std::int64_t rows = (w.*operand).data.rows;
              CHECK(same_bits(b.fetch((there.*operand).data).slice_rows(e * rows, rows), (w.*operand).data));
              CHECK(same_scales(b.fetch((there.*operand).scale).elements(e, 1), (w.*operand).scale));
            }
          }
        }
}

PRECBENCH_OP_TEST(expert_squares_on, "quantize_experts: blocks of 128x128 end with their expert") {
  for (const Stack& stack : {Stack{5, 128, 256}, Stack{3, 192, 320}, Stack{5, 144, 208}, Stack{2, 72, 136}})
    for (const QuantFormat& format : {kSquare, find_recipe("blockwise_pow2").fprop.b}) {
      INFO(stack.experts << " experts of " << stack.rows << " x " << stack.cols << ", " << describe(format));
      b.start();
      const std::int64_t E = stack.experts;
      const Tensor value = make_input(b.host(), Input::imbalanced, E * stack.rows, stack.cols);
      const auto there = [&](auto... shape) { return b.output(shape...); };
      const auto here = [&](auto... shape) { return b.host().tensor(shape...); };
      const QuantizedTensor all{.value = b.put(value),
                                .rowwise = operand_of(there, format, E, stack.rows, stack.cols),
                                .columnwise = operand_of(there, format, E, stack.cols, stack.rows)};
      b.device().quantize_experts({all, E});
      for (std::int64_t e = 0; e < E; ++e) {  // one expert at a time with the op for a single matrix
        const QuantizedTensor one{.value = value.slice_rows(e * stack.rows, stack.rows),
                                  .rowwise = operand_of(here, format, 1, stack.rows, stack.cols),
                                  .columnwise = operand_of(here, format, 1, stack.cols, stack.rows)};
        b.cpu().quantize({one});
        for (const auto operand : {&QuantizedTensor::rowwise, &QuantizedTensor::columnwise}) {
          const GemmOperand& expected = one.*operand;
          const std::int64_t rows = expected.data.rows, scales = expected.scale.size();
          CHECK(same_bits(b.fetch((all.*operand).data).slice_rows(e * rows, rows), expected.data));
          CHECK(same_scales(b.fetch((all.*operand).scale).elements(e * scales, scales), expected.scale));
        }
      }
    }
}

PRECBENCH_OP_TEST(left_on, "quantize_experts leaves the experts' amaxes without any copy") {
  b.start();
  const Tensor value = make_input(b.host(), Input::imbalanced, 3 * 144, 208),
               out = b.host().tensor(DType::f32, 1, 3);
  std::fill_n(out.as<float>(), 3, 7e9f);
  const Tensor dev_out = b.put(out);
  b.device().quantize_experts({{.value = b.put(value), .amax_out = dev_out}, 3});
  const Tensor left = b.fetch(dev_out);
  for (std::int64_t e = 0; e < 3; ++e) {
    const Tensor amax = b.host().tensor(DType::f32, 1, 1);
    b.cpu().amax({amax, value.slice_rows(e * 144, 144)});
    CHECK(left.as<float>()[e] == *amax.as<float>());
  }
}

PRECBENCH_OP_TEST(inputs_on, "quantize_experts is bit-exact on hostile inputs") {
  for (const Input input : kInputs)
    for (const QuantFormat& format : kFormats) {
      b.start();
      const Stack stack{3, 256, 136};
      const Tensor value = make_input(b.host(), input, stack.experts * stack.rows, stack.cols);
      check_stack(b, {format, format}, stack, value, b.put(value));
    }
}

PRECBENCH_OP_TEST(many_on, "quantize_experts is bit-exact for more experts than one run of tiles has") {
  for (const Stack& stack : {Stack{70, 384, 256}, Stack{3, 2688, 2560}}) {
    b.start();
    const Tensor value = make_input(b.host(), Input::imbalanced, stack.experts * stack.rows, stack.cols);
    const Tensor there = b.put(value);
    for (const OutputFormats& formats :
         {OutputFormats{kRow, kRow}, OutputFormats{{}, kRow}, OutputFormats{kTensorE4m3, kTensorE4m3},
          OutputFormats{kSquare, kSquare}, OutputFormats{kTensorE4m3, kRow}})
      check_stack(b, formats, stack, value, there);
  }
}
