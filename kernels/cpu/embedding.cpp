// Token embedding: a row copy in forward; backward adds each token's gradient row to its table row in token
// order. Tokens without a row in the table embed to 0 and have no gradient.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"

namespace precbench {

void CpuDevice::do_embedding(const ops::Embedding& op) {
  const std::int64_t C = op.x.cols;
  cpu::for_rows(threads_, op.x.rows, C, [&](std::int64_t r, float* buffer) {
    const std::int64_t row = op.tokens.as<std::int32_t>()[r] - op.first;
    const bool known = row >= 0 && row < op.table.rows;
    if (!known) std::fill_n(buffer, C, 0.0f);
    cpu::store(op.x, r * C, C, known ? cpu::load(op.table, row * C, C, buffer) : buffer);
  });
}

void CpuDevice::do_embedding_backward(const ops::EmbeddingBackward& op) {
  const std::int64_t C = op.dx.cols, M = op.dx.rows;
  // Threads divide the work by table row: a list of each token's occurrences lets one thread sum them in
  // token order, in FP32, and round once.
  std::vector<std::int64_t> next(M, -1), head(op.dtable.rows, -1), order;
  for (std::int64_t r = M - 1; r >= 0; --r) {
    const std::int64_t row = op.tokens.as<std::int32_t>()[r] - op.first;
    if (row < 0 || row >= op.dtable.rows) continue;
    next[r] = head[row];
    head[row] = r;
  }
  for (std::int64_t v = 0; v < op.dtable.rows; ++v)
    if (head[v] >= 0) order.push_back(v);
  cpu::for_rows(threads_, static_cast<std::int64_t>(order.size()), 2 * C, [&](std::int64_t i, float* buffer) {
    const std::int64_t v = order[i];
    const float* before = cpu::load(op.dtable, v * C, C, buffer + C);
    std::copy(before, before + C, buffer);
    for (std::int64_t r = head[v]; r >= 0; r = next[r]) {
      const float* grad = cpu::load(op.dx, r * C, C, buffer + C);
      for (std::int64_t c = 0; c < C; ++c) buffer[c] += grad[c];
    }
    cpu::store(op.dtable, v * C, C, buffer);
  });
}

}  // namespace precbench
