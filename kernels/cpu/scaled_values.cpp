// Tensors stored as codes with a per-tensor scale: encode, decode, sum_codes, commit_scale.
#include "kernels/cpu/scaled_values.h"

#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/weight_update.h"
#include "kernels/numerics/amax.h"

namespace precbench {

void CpuDevice::do_encode(const ops::Encode& op) {
  std::vector<std::int32_t> amaxes(cpu::update_chunks(op.src.size()));
  cpu::for_update_chunks(threads_, op.src.size(), 2, [&](std::int64_t first, std::int64_t n, float* buffer) {
    const float* values = cpu::load(op.src, first, n, buffer);
    if (op.accumulate) {
      const float* kept = cpu::load_scaled(op.codes, op.scale.scale, first, n, buffer + cpu::kUpdateChunk);
      for (std::int64_t i = 0; i < n; ++i) buffer[i] = values[i] + kept[i];
      values = buffer;
    }
    if (op.measure)
      amaxes[first / cpu::kUpdateChunk] = amax_bits(values, n);
    else
      cpu::store_scaled(op.codes, op.scale, first, n, values, op.headroom);
  });
  if (!op.measure) return;
  for (const std::int32_t bits : amaxes) cpu::raise_amax(op.scale, bits);
}

void CpuDevice::do_decode(const ops::Decode& op) {
  cpu::for_update_chunks(threads_, op.dst.size(), 1, [&](std::int64_t first, std::int64_t n, float* buffer) {
    cpu::store(op.dst, first, n, cpu::load_scaled(op.codes, op.scale, first, n, buffer));
  });
}

void CpuDevice::do_sum_codes(const ops::SumCodes& op) {
  const auto rounded = [&](float x) {
    std::uint16_t code = 0;  // of one or two bytes
    state_encode(op.codes.dtype, &code, 0, x);
    return state_decode(op.codes.dtype, &code, 0);
  };
  cpu::for_update_chunks(threads_, op.dst.size(), 1, [&](std::int64_t first, std::int64_t n, float* buffer) {
    float* total = op.dst.as<float>() + first;
    if (op.round) {  // sums unscaled codes: the FP32 sum of two is exact, then rounded
      for (std::int64_t i = 0; i < n; ++i) {
        const auto code = [&](std::int64_t row) {
          return state_decode(op.codes.dtype, op.codes.data, row * op.codes.cols + op.first + first + i);
        };
        float sum = code(0);
        for (std::int64_t row = 1; row < op.codes.rows; ++row) sum = rounded(sum + code(row));
        total[i] = sum * (1.0f / *op.scale.as<float>());
      }
      return;
    }
    for (std::int64_t row = 0; row < op.codes.rows; ++row) {
      const float* values = cpu::load_scaled(op.codes, op.scale, row * op.codes.cols + op.first + first, n,
                                             row == 0 ? total : buffer);
      for (std::int64_t i = 0; row > 0 && i < n; ++i) total[i] += values[i];
    }
  });
}

void CpuDevice::do_commit_scale(const ops::CommitScale& op) {
  for (std::int64_t i = 0; i < op.scale.size(); ++i) {
    float &scale = op.scale.as<float>()[i], &amax = op.amax.as<float>()[i];
    scale = state_scale(amax, op.max, scale);
    amax = 0;
  }
}

}  // namespace precbench
