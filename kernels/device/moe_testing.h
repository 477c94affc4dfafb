// For the tests of a mixture's ops: groups of rows on a device, from the experts that tokens go to.
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

/// The groups that `device` makes of slots' experts, index [T, K]; memory(dtype, rows, cols).
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

/// One slot for each token, so many tokens for each expert, in turns.
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

}  // namespace precbench::testing
