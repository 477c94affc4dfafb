// Grouping rows by expert and back: the sort against a plain one, gathered codes against codes of gathered
// values.
#include <algorithm>
#include <cmath>

#include "kernels/device/moe_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Returns a copy's scales with those of rows from `end` on set to 0: they lie after the last group and are
/// unspecified. Host tensors.
Tensor scales_until(const Tensor& scales, const GemmOperand& operand, std::int64_t end) {
  const Granularity g = operand.format.granularity;
  const std::int64_t rows = operand.data.rows, k = operand.data.cols, bytes = bits_of(scales.dtype) / 8;
  for (std::int64_t r = end; r < rows && g != Granularity::tensor; ++r)
    for (std::int64_t kb = 0; kb < scale_blocks(g, k); ++kb)
      std::memset(scales.as<std::byte>() + scale_index(g, rows, k, r, kb) * bytes, 0, bytes);
  return scales;
}

}  // namespace

PRECBENCH_OP_TEST(group_on, "group") {
  for (const std::int64_t pad : {1, 16, 128})
    for (const std::int64_t most : {1000, 20, 1})
      for (const std::int64_t T : {1, 77, 200}) {
        INFO("pad " << pad << " most " << most << " T " << T);
        b.start();
        const std::int64_t K = 2, E = 9;
        const std::vector<std::int32_t> index = uneven_index(T, K, E);
        const TwoGroups groups(b, index, K, E, pad, most);
        const std::vector<std::int32_t> offsets = integers(b.fetch(groups.device.offsets));
        std::vector<std::int32_t> row_of(T * K, -1), source(groups.device.rows_capacity(), -1);
        std::int64_t first = 0, rows = 0;
        for (std::int64_t e = 0; e < E; ++e) {
          CHECK(offsets[e] == first);
          std::int64_t count = 0;
          for (std::int64_t slot = 0; slot < T * K; ++slot)
            if (index[slot] == e && count < most) {
              row_of[slot] = static_cast<std::int32_t>(first + count);
              source[first + count++] = static_cast<std::int32_t>(slot);
            }
          CHECK(integers(b.fetch(groups.device.counts))[e] == count);
          first += (count + pad - 1) / pad * pad;
          rows += count;
        }
        CHECK(offsets[E] == first);
        CHECK(first <= groups.device.rows_capacity());
        CHECK(integers(b.fetch(groups.device.row_of)) == row_of);
        CHECK(integers(b.fetch(groups.device.source)) == source);
        CHECK(groups.report.as<float>()[0] == static_cast<float>(rows));
        CHECK(groups.report.as<float>()[1] == static_cast<float>(first));
        CHECK(groups.report.as<float>()[2] == static_cast<float>(T * K - rows));
        // Grouping the kept slots again gives the same groups and drops nothing more.
        std::vector<std::int32_t> kept = index;
        for (std::int64_t slot = 0; slot < T * K; ++slot)
          if (row_of[slot] < 0) kept[slot] = -1;
        const Tensor slots = b.put(host_integers(b.host(), index, K)), there = b.output(DType::i32, T, K),
                     report = b.output(DType::f32, 1, 3);
        b.device().group({groups.device, report, slots, most, 0, there});
        CHECK(integers(b.fetch(there)) == kept);
        b.device().group({groups.device, report, there, T});
        CHECK(integers(b.fetch(groups.device.row_of)) == row_of);
        CHECK(integers(b.fetch(groups.device.source)) == source);
        CHECK(b.fetch(report).as<float>()[0] == static_cast<float>(rows));
        CHECK(b.fetch(report).as<float>()[2] == 0);
      }
}

PRECBENCH_OP_TEST(permute_on, "permute: codes gathered are codes of what was gathered") {
  // The capacity exceeds the number of tokens.
  const std::int64_t T = 150, value_rows = 193, K = 2, E = 5, C = 256;
  for (const OutputFormats& formats : {OutputFormats{},
                                       {kTensorE4m3, kTensorE4m3},
                                       {kTensorE4m3, kTensorE5m2},
                                       {kRow, kRow},
                                       {kBlock, kBlock},
                                       {kBlockPow2, kBlockPow2},
                                       {kMx, kMx}})
    for (const std::int64_t most : {1000, 30})
      for (const bool weighted : {false, true}) {
        INFO("row " << describe(formats.rowwise) << " most " << most << (weighted ? " weighted" : ""));
        b.start();
        HostMemory& host = b.host();
        const TwoGroups groups(b, uneven_index(T, K, E), K, E, 128, most);
        const std::int64_t rows = groups.cpu.rows_capacity();
        const Tensor value = host.random(DType::bf16, value_rows, C, 1.0f);
        const Tensor weights = weighted ? host.random(DType::f32, T, K, 1.0f) : Tensor{};
        QuantizedTensor src = b.host_operand({formats.rowwise, {}}, value);
        b.cpu().quantize({src});
        QuantizedTensor x = b.operand({formats.rowwise, {}}, rows, C);
        if (formats.columnwise.quantized()) {
          x.columnwise = b.quantized_copy(formats.columnwise, C, rows);
          if (formats.columnwise.granularity == Granularity::row)
            x.columnwise.scale = b.output(DType::f32, 1, E * C);
          if (formats.one_scale()) x.amax_out = b.output(DType::f32, 1, 1);
        }
        QuantizedTensor there{.value = b.put(value)};
        if (formats.rowwise.quantized()) there.rowwise = b.put(src.rowwise);
        b.device().permute({x, there, b.put(weights), groups.device});

        const Tensor gathered = host.tensor(DType::bf16, rows, C);
        const std::vector<std::int32_t> source = integers(groups.cpu.source);
        for (std::int64_t i = 0; i < gathered.size(); ++i) {
          const std::int32_t slot = source[i / C];
          const float v = slot < 0 ? 0.0f : HostMemory::get(value, slot / K * C + i % C);
          HostMemory::set(gathered, i, weighted && slot >= 0 ? v * weights.as<float>()[slot] : v);
        }
        const std::vector<std::int32_t> offsets = integers(groups.cpu.offsets);
        const std::int64_t end = offsets[E];
        CHECK(same_bits(b.fetch(x.value).slice_rows(0, end), gathered.slice_rows(0, end)));
        if (!formats.rowwise.quantized()) continue;
        // With one scale per tensor, the amax is that of all tokens, dropped or not.
        QuantizedTensor expected = b.host_operand({formats.rowwise, {}}, gathered);
        if (!weighted && formats.one_scale()) {
          expected.amax_in = src.amax_out;
          expected.amax_out = {};
        }
        b.cpu().quantize({expected});
        CHECK(
            same_bits(b.fetch(x.rowwise.data).slice_rows(0, end), expected.rowwise.data.slice_rows(0, end)));
        CHECK(same_scales(scales_until(b.fetch(x.rowwise.scale), x.rowwise, end),
                          scales_until(expected.rowwise.scale, x.rowwise, end)));
        check_columns(b, x, formats, gathered, offsets);
      }
}

PRECBENCH_OP_TEST(permute_many_on, "permute to columns of more tiles than a GPU has at a time") {
  const std::int64_t T = 2500, K = 2, E = 21, C = 1152;
  for (const bool weighted : {false, true}) {
    INFO((weighted ? "weighted" : "not weighted"));
    b.start();
    HostMemory& host = b.host();
    const TwoGroups groups(b, uneven_index(T, K, E), K, E, 128);
    const std::int64_t rows = groups.cpu.rows_capacity();
    const Tensor value = host.random(DType::bf16, T, C, 1.0f);
    const Tensor weights = weighted ? host.random(DType::f32, T, K, 1.0f) : Tensor{};
    const OutputFormats formats{weighted ? kRow : QuantFormat{}, kRow};
    QuantizedTensor x = b.operand(formats, rows, C);
    x.columnwise.scale = b.output(DType::f32, 1, E * C);
    b.device().permute({x, {.value = b.put(value)}, b.put(weights), groups.device});
    check_columns(b, x, formats, b.fetch(x.value), integers(groups.cpu.offsets));
  }
}

PRECBENCH_OP_TEST(unpermute_on, "unpermute") {
  const std::int64_t T = 90, E = 6;
  struct Shape {
    std::int64_t K, C;
  };
  for (const Shape& shape : {Shape{1, 40}, {2, 40}, {3, 40}, {2, 2080}})
    for (const std::int64_t most : {1000, 10}) {
      const std::int64_t K = shape.K, C = shape.C;
      INFO("K " << K << " C " << C << " most " << most);
      b.start();
      HostMemory& host = b.host();
      const TwoGroups groups(b, uneven_index(T, K, E), K, E, 16, most);
      const std::int64_t rows = groups.cpu.rows_capacity();
      const Tensor x = host.random(DType::bf16, T, C, 1.0f), addend = host.random(DType::f32, T, C, 1.0f);
      const Tensor weights = host.random(DType::f32, T, K, 1.0f);
      QuantizedTensor there = b.operand({}, rows, C);
      b.device().permute({there, {.value = b.put(x)}, {}, groups.device});
      const std::vector<std::int32_t> row_of = integers(groups.cpu.row_of);
      const auto kept = [&](std::int64_t slot) { return row_of[slot] >= 0; };
      const auto check = [&](const Tensor& got,
                             const std::function<float(std::int64_t, std::int64_t)>& wanted) {
        const Tensor expected = host.tensor(DType::bf16, T, C);
        for (std::int64_t i = 0; i < T * C; ++i) HostMemory::set(expected, i, wanted(i / C, i));
        CHECK(same_bits(b.fetch(got), expected));
      };
      const Tensor sum = b.output(DType::bf16, T, C);
      // A gathered row is added once for each slot that was not dropped.
      b.device().unpermute({.out = sum, .rows = there.value, .addend = {}, .groups = groups.device});
      check(sum, [&](std::int64_t t, std::int64_t i) {
        float total = 0;
        for (std::int64_t k = 0; k < K; ++k) total += kept(t * K + k) ? HostMemory::get(x, i) : 0.0f;
        return total;
      });
      if (C > 40) continue;  // in so many sums one is close enough to a tie to flip with weights
      const Tensor dw = b.output(DType::f32, T, K);
      b.device().unpermute({sum, there.value, b.put(addend), b.put(weights), dw, b.put(x), groups.device});
      check(sum, [&](std::int64_t t, std::int64_t i) {
        float total = 0;
        for (std::int64_t k = 0; k < K; ++k)
          if (kept(t * K + k)) total += weights.as<float>()[t * K + k] * HostMemory::get(x, i);
        return total + addend.as<float>()[i];
      });
      const Tensor got_dw = b.fetch(dw);
      for (std::int64_t slot = 0; slot < T * K; ++slot) {
        double product = 0;
        for (std::int64_t c = 0; c < C; ++c)
          product += std::pow(static_cast<double>(HostMemory::get(x, slot / K * C + c)), 2);
        CHECK(std::fabs(got_dw.as<float>()[slot] - (kept(slot) ? product : 0.0)) <= 1e-5 * product);
      }
    }
}

PRECBENCH_OP_TEST(group_peers_on, "tokens go to each rank that has an expert of theirs, once and in order") {
  constexpr std::int64_t kTokens = 2500, kTopK = 3, kRanks = 4, kOwn = 2;
  std::vector<std::int32_t> index;
  // Distinct experts out of 8, some on the same rank; some slots have none, and some tokens have no slot.
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (std::int64_t k = 0; k < kTopK; ++k) {
      const bool none = t % 11 == 0 || (t + k) % 7 == 0;
      index.push_back(none ? -1 : static_cast<std::int32_t>((t * 5 + k * (1 + t % 3)) % (kRanks * kOwn)));
    }
  for (const bool tight : {false, true})
    for (const std::int64_t most : {std::int64_t{1000}, kTokens}) {
      INFO((tight ? "tight, " : "") << most << " rows");
      b.start();
      const Tensor weights = b.host().tensor(DType::f32, kTokens, kTopK);
      for (std::int64_t slot = 0; slot < weights.size(); ++slot)
        weights.as<float>()[slot] = static_cast<float>(slot + 1);
      const Groups peers{.offsets = b.output(DType::i32, 1, kRanks + 1),
                         .counts = b.output(DType::i32, 1, kRanks),
                         .row_of = b.output(DType::i32, kTokens, kRanks),
                         .source = b.output(DType::i32, 1, kRanks * most)};
      const Tensor row_index = b.output(DType::i32, kRanks * most, kTopK),
                   row_weights = b.output(DType::f32, kRanks * most, kTopK),
                   report = b.output(DType::f32, 1, 1);
      b.device().group_peers({peers, row_index, row_weights, report,
                              b.put(host_integers(b.host(), index, kTopK)), b.put(weights), kOwn, most,
                              tight});
      std::vector<std::int32_t> offsets = {0}, counts, row_of(kTokens * kRanks, -1),
                                source(kRanks * most, -1), rows(kRanks * most * kTopK, -1);
      std::vector<float> values(kRanks * most * kTopK, 0.0f);
      std::int64_t dropped = 0;
      for (std::int64_t r = 0; r < kRanks; ++r) {
        const std::int64_t begin = offsets.back();
        std::int64_t count = 0;
        for (std::int64_t t = 0; t < kTokens; ++t) {
          const auto first = index.begin() + t * kTopK;
          const auto there =
              std::count_if(first, first + kTopK, [&](std::int32_t e) { return e >= 0 && e / kOwn == r; });
          if (there == 0 || count == most) {
            dropped += there;
            continue;
          }
          const std::int64_t row = begin + count++;
          row_of[t * kRanks + r] = static_cast<std::int32_t>(row);
          source[row] = static_cast<std::int32_t>(t * kRanks + r);
          std::copy_n(first, kTopK, rows.begin() + row * kTopK);
          std::copy_n(weights.as<float>() + t * kTopK, kTopK, values.begin() + row * kTopK);
        }
        counts.push_back(static_cast<std::int32_t>(count));
        offsets.push_back(static_cast<std::int32_t>(begin + (tight ? count : most)));
      }
      CHECK((integers(b.fetch(peers.offsets)) == offsets));
      CHECK((integers(b.fetch(peers.counts)) == counts));
      CHECK((integers(b.fetch(peers.row_of)) == row_of));
      CHECK((integers(b.fetch(peers.source)) == source));
      CHECK((integers(b.fetch(row_index)) == rows));
      const Tensor got = b.fetch(row_weights);
      CHECK(std::equal(values.begin(), values.end(), got.as<float>()));
      CHECK(b.fetch(report).as<float>()[0] == static_cast<float>(dropped));
      CHECK((dropped > 0) == (most == 1000));
      // The returned rows, a few numbers wide, are added up for each token.
      const Tensor sums = b.output(DType::f32, kTokens, kTopK);
      b.device().unpermute({.out = sums, .rows = row_weights, .addend = {}, .groups = peers});
      std::vector<float> expected(kTokens * kTopK, 0.0f);
      for (std::int64_t slot = 0; slot < kTokens * kRanks; ++slot)
        for (std::int64_t k = 0; row_of[slot] >= 0 && k < kTopK; ++k)
          expected[slot / kRanks * kTopK + k] += values[row_of[slot] * kTopK + k];
      const Tensor back = b.fetch(sums);
      CHECK(std::equal(expected.begin(), expected.end(), back.as<float>()));
    }
}

PRECBENCH_OP_TEST(group_some_on, "a group of some experts takes their slots alone") {
  b.start();
  const std::vector<std::int32_t> index = {0, 3, 2, 1, 3, 2, -1, -1, 1, 3};
  const Groups groups{.offsets = b.output(DType::i32, 1, 3),
                      .counts = b.output(DType::i32, 1, 2),
                      .row_of = b.output(DType::i32, 5, 2),
                      .source = b.output(DType::i32, 1, 16),
                      .pad = 4};
  const Tensor slots = b.put(host_integers(b.host(), index, 2)), report = b.output(DType::f32, 1, 3),
               kept = b.output(DType::i32, 5, 2);
  b.device().group({groups, report, slots, 5, 2, kept});  // experts 2 and 3
  CHECK(integers(b.fetch(groups.offsets)) == std::vector<std::int32_t>{0, 4, 8});
  CHECK(integers(b.fetch(groups.counts)) == std::vector<std::int32_t>{2, 3});
  CHECK(b.fetch(report).as<float>()[2] == 0);  // slots of other ranks are not dropped
  CHECK(integers(b.fetch(groups.row_of)) == std::vector<std::int32_t>{-1, 4, 0, -1, 5, 1, -1, -1, -1, 6});
  CHECK(integers(b.fetch(groups.source)) ==
        std::vector<std::int32_t>{2, 5, -1, -1, 1, 4, 9, -1, -1, -1, -1, -1, -1, -1, -1, -1});
  CHECK(integers(b.fetch(kept)) == std::vector<std::int32_t>{-1, 3, 2, -1, 3, 2, -1, -1, -1, 3});
}
