// Grouping of rows by expert: a stable counting sort of the slots, gathering token rows into groups, and the
// reverse.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/quantize_rows.h"

namespace precbench {
namespace {

/// Gathers codes and scales row by row; padding gets quantized zeros.
void gather_copy(int threads, const GemmOperand& to, const GemmOperand& from, const Groups& groups) {
  const QuantFormat& format = from.format;
  const Granularity g = format.granularity;
  const std::int64_t k = from.data.cols, rows = to.data.rows, blocks = scale_blocks(g, k);
  if (g == Granularity::tensor)
    std::memcpy(to.scale.data, from.scale.data, to.scale.bytes());
  else
    std::memset(to.scale.data, 0, to.scale.bytes());
  const cpu::Scale of_zeros = cpu::scale_of(0.0f, format);
  cpu::for_rows(threads, rows, 0, [&](std::int64_t r, float*) {
    const std::int32_t slot = groups.source.as<std::int32_t>()[r];
    const std::int64_t t = slot / groups.top_k();
    std::uint8_t* codes = to.data.as<std::uint8_t>() + r * k;
    if (slot < 0)
      std::memset(codes, 0, k);
    else
      std::memcpy(codes, from.data.as<std::uint8_t>() + t * k, k);
    for (std::int64_t kb = 0; g != Granularity::tensor && kb < blocks; ++kb) {
      const std::int64_t at = scale_index(g, rows, k, r, kb);
      const std::int64_t source = scale_index(g, from.data.rows, k, t, kb);
      if (slot < 0)
        cpu::store_scale(to.scale, at, of_zeros);
      else if (to.scale.dtype == DType::ue8m0)
        to.scale.as<std::uint8_t>()[at] = from.scale.as<std::uint8_t>()[source];
      else
        to.scale.as<float>()[at] = from.scale.as<float>()[source];
    }
  });
}

}  // namespace

void CpuDevice::do_group(const ops::Group& op) {
  const Groups& groups = op.groups;
  const std::int64_t E = groups.experts(), slots = op.index.size();
  const std::int32_t* index = op.index.as<std::int32_t>();
  std::int32_t* counts = groups.counts.as<std::int32_t>();
  std::int32_t* offsets = groups.offsets.as<std::int32_t>();
  std::int32_t* row_of = groups.row_of.as<std::int32_t>();
  std::int32_t* source = groups.source.as<std::int32_t>();
  const auto group_of = [&](std::int64_t slot) {
    const std::int64_t e = index[slot] - op.first;
    return e >= 0 && e < E ? e : -1;
  };
  std::fill_n(counts, E, 0);
  for (std::int64_t slot = 0; slot < slots; ++slot)
    if (const std::int64_t e = group_of(slot); e >= 0) ++counts[e];
  std::int64_t rows = 0, dropped = 0;
  offsets[0] = 0;
  for (std::int64_t e = 0; e < E; ++e) {
    dropped += std::max<std::int64_t>(0, counts[e] - op.most);
    counts[e] = static_cast<std::int32_t>(std::min<std::int64_t>(counts[e], op.most));
    rows += counts[e];
    offsets[e + 1] = static_cast<std::int32_t>(offsets[e] + detail::padded(counts[e], groups.pad));
  }
  std::fill_n(source, groups.rows_capacity(), -1);
  std::vector<std::int32_t> filled(E);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const std::int64_t e = group_of(slot);
    row_of[slot] = e >= 0 && filled[e] < counts[e] ? offsets[e] + filled[e]++ : -1;
    if (row_of[slot] >= 0) source[row_of[slot]] = static_cast<std::int32_t>(slot);
    if (!op.kept.empty()) op.kept.as<std::int32_t>()[slot] = row_of[slot] >= 0 ? index[slot] : -1;
  }
  op.report.as<float>()[0] = static_cast<float>(rows);
  op.report.as<float>()[1] = static_cast<float>(offsets[E]);
  op.report.as<float>()[2] = static_cast<float>(dropped);
}

void CpuDevice::do_group_peers(const ops::GroupPeers& op) {
  const Groups& peers = op.peers;
  const std::int64_t P = peers.experts(), T = op.index.rows, K = op.index.cols;
  std::int32_t* counts = peers.counts.as<std::int32_t>();
  std::int32_t* offsets = peers.offsets.as<std::int32_t>();
  std::int32_t* row_of = peers.row_of.as<std::int32_t>();
  std::int32_t* source = peers.source.as<std::int32_t>();
  std::fill_n(counts, P, 0);
  std::fill_n(row_of, T * P, -1);
  std::fill_n(source, peers.rows_capacity(), -1);
  std::fill_n(op.row_index.as<std::int32_t>(), op.row_index.size(), -1);
  std::fill_n(op.row_weights.as<float>(), op.row_weights.size(), 0.0f);
  std::int64_t dropped = 0;
  for (std::int64_t t = 0; t < T; ++t)  // first: a token's index in each rank's group
    for (std::int64_t k = 0; k < K; ++k) {
      const std::int32_t expert = op.index.as<std::int32_t>()[t * K + k];
      if (expert < 0) continue;
      const std::int64_t r = expert / op.experts;
      std::int32_t& place = row_of[t * P + r];
      if (place < 0 && counts[r] < op.most) place = counts[r]++;
      dropped += place < 0;
    }
  offsets[0] = 0;
  for (std::int64_t r = 0; r < P; ++r)
    offsets[r + 1] = static_cast<std::int32_t>(offsets[r] + (op.tight ? counts[r] : op.most));
  for (std::int64_t slot = 0; slot < T * P; ++slot) {
    if (row_of[slot] < 0) continue;
    const std::int64_t t = slot / P, row = row_of[slot] += offsets[slot % P];
    source[row] = static_cast<std::int32_t>(slot);
    std::copy_n(op.index.as<std::int32_t>() + t * K, K, op.row_index.as<std::int32_t>() + row * K);
    std::copy_n(op.weights.as<float>() + t * K, K, op.row_weights.as<float>() + row * K);
  }
  op.report.as<float>()[0] = static_cast<float>(dropped);
}

void CpuDevice::do_permute(const ops::Permute& op) {
  const Tensor& value = op.x.value;
  const std::int64_t rows = value.empty() ? 0 : value.rows, C = value.cols;
  const bool weighted = !op.weights.empty();
  cpu::for_rows(threads_, rows, C, [&](std::int64_t r, float* buffer) {
    const std::int32_t slot = op.groups.source.as<std::int32_t>()[r];
    if (slot < 0) {
      std::memset(value.slice_rows(r, 1).data, 0, bytes_of(value.dtype, C));
      return;
    }
    const std::int64_t t = slot / op.groups.top_k();
    const float* row = cpu::load(op.src.value, t * C, C, buffer);
    if (weighted && row != buffer) row = std::copy_n(row, C, buffer) - C;
    for (std::int64_t c = 0; weighted && c < C; ++c) buffer[c] *= op.weights.as<float>()[slot];
    cpu::store(value, r * C, C, row);
  });
  QuantizedTensor x = op.x;
  if (!weighted && x.rowwise.format.quantized() && !x.rowwise.empty()) {
    gather_copy(threads_, x.rowwise, op.src.rowwise, op.groups);
    x.rowwise = {};
  }
  if (!weighted && !x.amax_out.empty()) {  // the amax of the tokens, as for the rowwise copy
    do_quantize({{.value = op.src.value, .amax_out = x.amax_out}});
    x.amax_in = std::exchange(x.amax_out, {});
  }
  if (!op.src.value.empty()) quantize_groups(x, op.groups);
}

void CpuDevice::do_unpermute(const ops::Unpermute& op) {
  const std::int64_t C = op.out.cols, K = op.groups.top_k();
  cpu::for_rows(threads_, op.out.rows, 3 * C, [&](std::int64_t t, float* sum) {
    bool any = false;
    for (std::int64_t k = 0; k < K; ++k) {
      const std::int64_t slot = t * K + k, row = op.groups.row_of.as<std::int32_t>()[slot];
      if (!op.dw.empty()) op.dw.as<float>()[slot] = 0;
      if (row < 0) continue;
      const float* values = cpu::load(op.rows, row * C, C, sum + C);
      const float weight = op.weights.empty() ? 1.0f : op.weights.as<float>()[slot];
      if (!op.dw.empty()) {
        const float* x = cpu::load(op.x, t * C, C, sum + 2 * C);
        op.dw.as<float>()[slot] = cpu::lane_dot(C, values, x);
      }
      for (std::int64_t c = 0; c < C; ++c)
        sum[c] = any ? multiply_add(weight, values[c], sum[c]) : weight * values[c];
      any = true;
    }
    if (!any) std::fill_n(sum, C, 0.0f);
    if (!op.addend.empty()) {
      const float* addend = cpu::load(op.addend, t * C, C, sum + C);
      for (std::int64_t c = 0; c < C; ++c) sum[c] += addend[c];
    }
    cpu::store(op.out, t * C, C, sum);
  });
}

}  // namespace precbench
