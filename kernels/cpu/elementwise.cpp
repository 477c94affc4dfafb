// Data movement and reductions: zero, convert, add, fill, init_normal, sum, sum_of_squares, fingerprint,
// correlate.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/scaled_values.h"
#include "kernels/numerics/random.h"

namespace precbench {
namespace {

// Elements per chunk of elementwise ops and sums; partial sums are added in chunk order.
constexpr std::int64_t kChunk = 16384;

/// Runs body(first, n, buffer of 2 chunks) over chunks of [0, size).
template <class Body>
void for_chunks(int threads, std::int64_t size, Body&& body) {
  cpu::for_rows(threads, (size + kChunk - 1) / kChunk, 2 * kChunk, [&](std::int64_t chunk, float* buffer) {
    const std::int64_t first = chunk * kChunk;
    body(first, std::min(kChunk, size - first), buffer);
  });
}

/// Returns the sum of chunk_sum(values, n) over chunks of x, which may be codes with a scale. Chunks are added in FP64.
template <class ChunkSum>
double chunked_sum(int threads, const Tensor& x, const Tensor& scale, ChunkSum&& chunk_sum) {
  std::vector<double> partial((x.size() + kChunk - 1) / kChunk);
  for_chunks(threads, x.size(), [&](std::int64_t first, std::int64_t n, float* buffer) {
    const float* values = cpu::load_scaled(x, scale, first, n, buffer);
    partial[first / kChunk] = chunk_sum(values, n);
  });
  double total = 0;
  for (double p : partial) total += p;
  return total;
}

}  // namespace

void CpuDevice::do_zero(const ops::Zero& op) { std::memset(op.x.data, 0, op.x.bytes()); }

void CpuDevice::do_convert(const ops::Convert& op) {
  if (op.dst.dtype == op.src.dtype) {
    std::memmove(op.dst.data, op.src.data, op.src.bytes());
    return;
  }
  for_chunks(threads_, op.dst.size(), [&](std::int64_t first, std::int64_t n, float* buffer) {
    cpu::store(op.dst, first, n, cpu::load(op.src, first, n, buffer));
  });
}

void CpuDevice::do_add(const ops::Add& op) {
  for_chunks(threads_, op.dst.size(), [&](std::int64_t first, std::int64_t n, float* buffer) {
    const float* a = cpu::load(op.dst, first, n, buffer);
    const float* b = cpu::load(op.src, first, n, buffer + kChunk);
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = a[i] + b[i];
    cpu::store(op.dst, first, n, buffer);
  });
}

void CpuDevice::do_fill(const ops::Fill& op) {
  for_chunks(threads_, op.x.size(), [&](std::int64_t first, std::int64_t n, float* buffer) {
    std::fill(buffer, buffer + n, op.value);
    cpu::store(op.x, first, n, buffer);
  });
}

void CpuDevice::do_init_normal(const ops::InitNormal& op) {
  for_chunks(threads_, op.x.size(), [&](std::int64_t first, std::int64_t n, float* buffer) {
    for (std::int64_t i = 0; i < n; ++i)
      buffer[i] = op.std * irwin_hall_normal(op.seed, op.index.of(first + i));
    cpu::store(op.x, first, n, buffer);
  });
}

void CpuDevice::do_sum(const ops::Sum& op) {
  const double total = chunked_sum(threads_, op.x, {}, [](const float* values, std::int64_t n) {
    return cpu::lane_sum(n, [&](std::int64_t i) { return values[i]; });
  });
  float& target = *op.out.as<float>();
  target = static_cast<float>(total + (op.accumulate ? target : 0.0f));
}

void CpuDevice::do_sum_of_squares(const ops::SumOfSquares& op) {
  const double total = chunked_sum(threads_, op.x, op.scale, [](const float* values, std::int64_t n) {
    return cpu::lane_dot(n, values, values);
  });
  float& target = *op.out.as<float>();
  target = static_cast<float>(total + (op.accumulate ? target : 0.0f));
}

void CpuDevice::do_fingerprint(const ops::Fingerprint& op) {
  // Two sums modulo 2^32 over all 16-bit halves, one of them weighted by position: both are independent of
  // the order.
  std::uint32_t plain = 0, weighted = 0;
  const std::uint16_t* words = op.x.as<std::uint16_t>();
  const std::int64_t count = op.x.bytes() / 2;
#pragma omp parallel for num_threads(threads_) reduction(+ : plain, weighted) schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {
    plain += words[i];
    weighted += words[i] * (static_cast<std::uint32_t>(i) * 2654435761u + 1u);
  }
  op.out.as<std::uint32_t>()[0] = plain;
  op.out.as<std::uint32_t>()[1] = weighted;
}

void CpuDevice::do_correlate(const ops::Correlate& op) {
  std::vector<std::array<double, 4>> partial((op.x.size() + kChunk - 1) / kChunk);
  for_chunks(threads_, op.x.size(), [&](std::int64_t first, std::int64_t n, float* buffer) {
    const float* x = cpu::load(op.x, first, n, buffer);
    const float* y = cpu::load(op.y, first, n, buffer + kChunk);
    partial[first / kChunk] = {
        cpu::lane_dot(n, x, y),
        cpu::lane_dot(n, x, x),
        cpu::lane_dot(n, y, y),
        cpu::lane_accumulate(
            n, [&](std::int64_t i, float sum) { return multiply_add(x[i] - y[i], x[i] - y[i], sum); }),
    };
  });
  for (int k = 0; k < 4; ++k) {
    double total = 0;
    for (const auto& p : partial) total += p[k];
    float& target = op.out.as<float>()[k];
    target = static_cast<float>(total + (op.accumulate ? target : 0.0f));
  }
}

}  // namespace precbench
