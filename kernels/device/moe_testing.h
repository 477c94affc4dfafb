// Helpers for tests of MoE ops: row groups on a device from the experts of each token.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/compare_testing.h"

namespace precbench::testing {

inline Tensor host_integers(HostMemory& host, const std::vector<std::int32_t>& values, std::int64_t cols) {
  const Tensor t = host.tensor(DType::i32, static_cast<std::int64_t>(values.size()) / cols, cols);
  std::copy(values.begin(), values.end(), t.as<std::int32_t>());
  return t;
}

inline std::vector<std::int32_t> integers(const Tensor& t) {
  return {t.as<std::int32_t>(), t.as<std::int32_t>() + t.size()};
}

/// Returns the groups that `device` makes from the slots' experts, index [T, K]. Calls memory(dtype, rows,
/// cols).
template <class Memory>
Groups make_groups(Device& device, Memory&& memory, const Tensor& index, std::int64_t experts,
                   std::int64_t pad, std::int64_t most, const Tensor& report) {
  const std::int64_t slots = index.size();
  Groups groups{.offsets = memory(DType::i32, 1, experts + 1),
                .counts = memory(DType::i32, 1, experts),
                .row_of = memory(DType::i32, index.rows, index.cols),
                .source = memory(DType::i32, 1, rows_capacity(slots, experts, pad)),
                .pad = pad,
                .rows_expected = slots};
  device.group({groups, report, index, most});
  return groups;
}

/// The same groups on the device under test and on the CPU device.
struct TwoGroups {
  Groups device, cpu;
  Tensor report;  ///< of the device, fetched

  TwoGroups(OpTest& b, const std::vector<std::int32_t>& index, std::int64_t top_k, std::int64_t experts,
            std::int64_t pad, std::int64_t most = std::int64_t{1} << 30) {
    const Tensor on_host = host_integers(b.host(), index, top_k);
    const Tensor report_there = b.output(DType::f32, 1, 3);
    device = make_groups(
        b.device(), [&](DType t, std::int64_t r, std::int64_t c) { return b.output(t, r, c); },
        b.put(on_host), experts, pad, most, report_there);
    cpu = make_groups(
        b.cpu(), [&](DType t, std::int64_t r, std::int64_t c) { return b.host().tensor(t, r, c); }, on_host,
        experts, pad, most, b.host().tensor(DType::f32, 1, 3));
    report = b.fetch(report_there);
  }
};

/// Returns one slot per token with the given number of tokens for each expert, interleaved.
inline std::vector<std::int32_t> experts_with(std::vector<std::int64_t> counts) {
  std::vector<std::int32_t> index;
  for (bool any = true; any;) {
    any = false;
    for (std::size_t e = 0; e < counts.size(); ++e)
      if (counts[e] > 0) {
        --counts[e];
        any = true;
        index.push_back(static_cast<std::int32_t>(e));
      }
  }
  return index;
}

/// Returns [T, K] experts, distinct per token; a few experts have most slots, and the last has none.
inline std::vector<std::int32_t> uneven_index(std::int64_t T, std::int64_t K, std::int64_t E) {
  std::vector<std::int32_t> index;
  for (std::int64_t t = 0; t < T; ++t)
    for (std::int64_t k = 0; k < K; ++k) {
      const std::int64_t width = random_bits(3, index.size()) % 4 ? 1 : (E - 1) / K;
      index.push_back(static_cast<std::int32_t>(k * ((E - 1) / K) + random_bits(4, index.size()) % width));
    }
  return index;
}

/// Checks that the columnwise copy of gathered rows consists of each group's own columnwise copy.
inline void check_columns(OpTest& b, const QuantizedTensor& x, const OutputFormats& formats,
                          const Tensor& gathered, const std::vector<std::int32_t>& offsets) {
  const std::int64_t rows = gathered.rows, C = gathered.cols;
  const Tensor codes = b.fetch(x.columnwise.data), scales = b.fetch(x.columnwise.scale);
  const Granularity g = formats.columnwise.granularity;
  const std::int64_t bytes = bits_of(scales.dtype) / 8;
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
    const std::int64_t first = offsets[e], n = offsets[e + 1] - first;
    if (n == 0) continue;
    QuantizedTensor part = b.host_operand({{}, formats.columnwise}, gathered.slice_rows(first, n));
    if (formats.one_scale()) {
      part.amax_in = b.fetch(x.amax_out);
      part.amax_out = {};
    }
    b.cpu().quantize({part});
    bool same = true;
    for (std::int64_t c = 0; c < C; ++c) {
      same = same && std::memcmp(codes.as<std::uint8_t>() + c * rows + first,
                                 part.columnwise.data.as<std::uint8_t>() + c * n, n) == 0;
      for (std::int64_t kb = 0; kb < scale_blocks(g, n); ++kb) {
        const std::int64_t block = block_length(g) ? block_length(g) : 1;
        const std::int64_t at = g == Granularity::row ? static_cast<std::int64_t>(e) * C + c
                                                      : scale_index(g, C, rows, c, first / block + kb);
        same = same &&
               std::memcmp(scales.as<std::uint8_t>() + at * bytes,
                           part.columnwise.scale.as<std::uint8_t>() + scale_index(g, C, n, c, kb) * bytes,
                           bytes) == 0;
      }
    }
    CHECK(same);
  }
}

}  // namespace precbench::testing
