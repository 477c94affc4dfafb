// SwiGLU over experts' rows: against the dense op on the same rows if weights are 1, else against FP64 and
// finite differences.
#include <cmath>

#include "kernels/device/moe_testing.h"

using namespace precbench;
using namespace precbench::testing;

PRECBENCH_OP_TEST(grouped_swiglu_on, "grouped_swiglu and grouped_swiglu_backward") {
  const std::int64_t T = 70, K = 2, E = 4, F = 128;
  std::vector<std::int32_t> index;
  for (std::int64_t slot = 0; slot < T * K; ++slot)
    index.push_back(static_cast<std::int32_t>(slot % K + (slot % 5 ? 0 : 2)));
  for (const OutputFormats& formats :
       {OutputFormats{}, {kTensorE4m3, {}}, {kRow, {}}, {kBlock, {}}, {kMx, {}}})
    for (const auto& [weighted, limit] : {std::pair{false, 0.0f}, {true, 0.0f}, {true, 1.5f}}) {
      INFO("row " << describe(formats.rowwise) << (weighted ? " weighted" : "") << " limit " << limit);
      b.start();
      HostMemory& host = b.host();
      const TwoGroups groups(b, index, K, E, 128, 50);  // some are dropped
      const std::int64_t rows = groups.cpu.rows_capacity();
      const std::vector<std::int32_t> source = integers(groups.cpu.source),
                                      row_of = integers(groups.cpu.row_of);
      const Tensor gate_up = host.random(DType::bf16, rows, 2 * F, 2.0f),
                   ds = host.random(DType::bf16, rows, F, 1.0f);
      for (std::int64_t r = 0; limit > 0 && r < rows; ++r)  // values at the limits, which have no gradient
        for (const auto& [at, value] : {std::pair{0, limit}, {F, limit}, {F + 1, -limit}})
          HostMemory::set(gate_up, r * 2 * F + at, value);
      for (std::int64_t r = 0; r < rows; ++r)  // padding is not read
        for (std::int64_t i = 0; source[r] < 0 && i < 2 * F; ++i)
          HostMemory::set(gate_up, r * 2 * F + i, NAN);
      const Tensor weights = weighted ? host.random(DType::f32, T, K, 1.0f) : Tensor{};

      const QuantizedTensor s = b.operand(formats, rows, F);
      b.device().grouped_swiglu({s, b.put(gate_up), b.put(weights), groups.device, limit});
      QuantizedTensor again = b.operand({}, rows, F), dgate_up = b.operand(formats, rows, 2 * F);
      const Tensor dw = weighted ? b.output(DType::f32, T, K) : Tensor{};
      b.device().grouped_swiglu_backward(
          {dgate_up, again, dw, b.put(ds), b.put(gate_up), b.put(weights), groups.device, limit});
      const Tensor got_s = b.fetch(s.value), got_d = b.fetch(dgate_up.value);
      CHECK(same_bits(b.fetch(again.value), got_s));
      b.check_copies("s", s, got_s);
      b.check_copies("dgate_up", dgate_up, got_d);

      const Tensor got_dw = weighted ? b.fetch(dw) : Tensor{};
      double error = 0, size = 0, d_error = 0, d_size = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        if (source[r] < 0) {
          for (std::int64_t i = 0; i < F; ++i) REQUIRE(HostMemory::get(got_s, r * F + i) == 0);
          for (std::int64_t i = 0; i < 2 * F; ++i) REQUIRE(HostMemory::get(got_d, r * 2 * F + i) == 0);
          continue;
        }
        const double w = weighted ? weights.as<float>()[source[r]] : 1.0;
        double product = 0;
        for (std::int64_t i = 0; i < F; ++i) {
          const double given_gate = HostMemory::get(gate_up, r * 2 * F + i),
                       given_up = HostMemory::get(gate_up, r * 2 * F + F + i);
          const bool clamped = limit > 0;
          const double alpha = clamped ? 1.702 : 1, bound = limit;
          const double gate = clamped ? std::min(given_gate, bound) : given_gate,
                       up = clamped ? 1 + std::clamp(given_up, -bound, bound) : given_up;
          const double g = HostMemory::get(ds, r * F + i), sigma = 1 / (1 + std::exp(-alpha * gate));
          const double value = gate * sigma * up;
          product += g * value;
          const bool gate_moves = !clamped || given_gate < bound,
                     up_moves = !clamped || std::fabs(given_up) < bound;
          const double wanted[] = {gate_moves ? w * g * up * sigma * (1 + alpha * gate * (1 - sigma)) : 0,
                                   up_moves ? w * g * gate * sigma : 0};
          error += std::pow(HostMemory::get(got_s, r * F + i) - w * value, 2), size += w * value * w * value;
          for (const int half : {0, 1}) {
            d_error += std::pow(HostMemory::get(got_d, r * 2 * F + half * F + i) - wanted[half], 2);
            d_size += wanted[half] * wanted[half];
          }
        }
        if (weighted) CHECK(std::fabs(got_dw.as<float>()[source[r]] - product) <= 1e-4);
      }
      // Rounded once to BF16: a uniform error of up to 2^-9.
      CHECK(std::sqrt(error / size) <= 0x1p-9);
      CHECK(std::sqrt(d_error / d_size) <= 0x1p-9);
      for (std::int64_t slot = 0; weighted && slot < T * K; ++slot)
        if (row_of[slot] < 0) CHECK(got_dw.as<float>()[slot] == 0);
    }
}

PRECBENCH_OP_TEST(grouped_columns_on, "grouped_swiglu_backward: columns are those of every group by itself") {
  struct Case {
    std::int64_t T, E, F;
  };
  for (const Case& c : {Case{70, 4, 128}, Case{70, 4, 136}, Case{2000, 21, 768}})  // many tiles the last
    for (const OutputFormats& formats :
         {OutputFormats{kRow, kRow}, {kBlock, kBlock}, {{}, kRow}, {kTensorE4m3, kRow}}) {
      INFO(c.T << " tokens, width " << c.F << ", row " << describe(formats.rowwise) << ", col "
               << describe(formats.columnwise));
      b.start();
      HostMemory& host = b.host();
      const std::int64_t K = 2;
      const TwoGroups groups(b, uneven_index(c.T, K, c.E), K, c.E, 128);
      const std::int64_t rows = groups.cpu.rows_capacity();
      const Tensor gate_up = host.random(DType::bf16, rows, 2 * c.F, 2.0f),
                   ds = host.random(DType::bf16, rows, c.F, 1.0f);
      const auto wanted = [&](const OutputFormats& of, std::int64_t cols) {
        QuantizedTensor x = b.operand(of, rows, cols);
        if (of.columnwise.granularity == Granularity::row)
          x.columnwise.scale = b.output(DType::f32, 1, c.E * cols);
        return x;
      };
      const OutputFormats of_s{{}, formats.columnwise};
      const QuantizedTensor dgate_up = wanted(formats, 2 * c.F), s = wanted(of_s, c.F);
      b.device().grouped_swiglu_backward({dgate_up, s, {}, b.put(ds), b.put(gate_up), {}, groups.device});
      const std::vector<std::int32_t> offsets = integers(groups.cpu.offsets);
      const Tensor got = b.fetch(dgate_up.value);
      b.check_copies("rows", {.value = dgate_up.value, .rowwise = dgate_up.rowwise}, got);
      check_columns(b, dgate_up, {{}, formats.columnwise}, got, offsets);
      check_columns(b, s, of_s, b.fetch(s.value), offsets);
    }
}
