// GEMM errors against FP64. See naive_gemm.h.
#include "kernels/checks/naive_gemm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/device/buffers.h"
#include "kernels/numerics/formats.h"
#include "kernels/numerics/random.h"

namespace precbench::checks {
namespace {

constexpr double kSigmas = 16;  // of the naive sum's error, allowed for one element
constexpr std::int64_t kTile = 64;
constexpr std::int64_t kNaiveSamples = 4096;  // enough for its error; the device's is taken over all elements

/// The elements of D whose error is taken.
class Sample {
 public:
  Sample(std::int64_t M, std::int64_t N, Elements elements)
      : M_(M), N_(N), across_((N + kTile - 1) / kTile), tiles_(across_ * ((M + kTile - 1) / kTile)) {
    if (elements == Elements::each_tile) per_tile_ = (kNaiveSamples + tiles_ - 1) / tiles_;
  }

  std::int64_t count() const { return per_tile_ ? tiles_ * per_tile_ : M_ * N_; }
  struct At {
    std::int64_t i, j;
  };
  At at(std::int64_t n) const {
    if (!per_tile_) return {n / N_, n % N_};
    const auto within = [&](std::int64_t tile, std::int64_t size, std::uint64_t stream) {
      const std::int64_t first = tile * kTile, length = std::min(kTile, size - first);
      return first + static_cast<std::int64_t>(random_bits(stream, static_cast<std::uint64_t>(n)) %
                                               static_cast<std::uint64_t>(length));
    };
    const std::int64_t tile = n / per_tile_;
    return {within(tile / across_, M_, 11), within(tile % across_, N_, 12)};
  }
  bool naive(std::int64_t n) const { return n % (count() / kNaiveSamples + 1) == 0; }

 private:
  std::int64_t M_, N_, across_, tiles_;
  std::int64_t per_tile_ = 0;  ///< 0: all elements
};

std::vector<double> norms_of(const HostOperand& x) {
  std::vector<double> norms(static_cast<std::size_t>(x.rows));
#pragma omp parallel
  {
    std::vector<double> buffer;
#pragma omp for
    for (std::int64_t r = 0; r < x.rows; ++r) {
      const double* row = x.row(r, buffer);
      double sum = 0;
      for (std::int64_t c = 0; c < x.k; ++c) sum += row[c] * row[c];
      norms[static_cast<std::size_t>(r)] = std::sqrt(sum);
    }
  }
  return norms;
}

}  // namespace

double round_to(DType dtype, double x) {
  const float f = static_cast<float>(x);
  return dtype == DType::f32 ? f : bf16_decode(bf16_encode(f));
}

namespace {

/// Returns the sum and the most that truncation can have changed it by: less than one unit for each addend.
std::pair<double, double> dot_and_truncation(const double* a, const double* b, std::int64_t k,
                                             const Accumulator& with) {
  double total = 0, sum = 0, truncated = 0;
  for (std::int64_t k0 = 0; k0 < k; k0 += with.group) {
    if (with.promote && k0 % with.promote == 0) {
      total = static_cast<float>(total + sum);
      sum = 0;
    }
    const std::int64_t end = std::min<std::int64_t>(k, k0 + with.group);
    double largest = std::fabs(sum);
    for (std::int64_t i = k0; i < end; ++i) largest = std::max(largest, std::fabs(a[i] * b[i]));
    if (largest == 0) continue;
    const double ulp = std::ldexp(1.0, std::ilogb(largest) - with.bits);
    double next = std::trunc(sum / ulp);
    for (std::int64_t i = k0; i < end; ++i) next += std::trunc(a[i] * b[i] / ulp);
    sum = next * ulp;
    truncated += static_cast<double>(end - k0 + 1) * ulp;
    if (with.group == 1) {  // the sum may have grown a bit
      const double grown = std::ldexp(1.0, std::ilogb(sum == 0 ? 1 : sum) - with.bits);
      sum = std::trunc(sum / grown) * grown;
      truncated += grown;
    }
  }
  return {total + sum, truncated};
}

double most_truncated(const double* a, const double* b, std::int64_t k, const Accumulator& with) {
  return dot_and_truncation(a, b, k, with).second;
}

}  // namespace

double naive_dot(const double* a, const double* b, std::int64_t k, const Accumulator& with) {
  return dot_and_truncation(a, b, k, with).first;
}

Errors errors_of(Device& device, const HostOperand& a, const HostOperand& b, const Output& output,
                 const Product& product_of, const Accumulator& accumulator, bool rounded, Elements elements) {
  const std::int64_t M = a.rows, N = b.rows, K = a.k;
  const std::vector<double> norms_a = norms_of(a), norms_b = norms_of(b);
  const auto norm = [&](std::int64_t i, std::int64_t j) {
    return norms_a[static_cast<std::size_t>(i)] * norms_b[static_cast<std::size_t>(j)];
  };
  const auto before = [&](std::int64_t i, std::int64_t j) {
    return round_to(output.dtype, irwin_hall_normal(7, static_cast<std::uint64_t>(i * N + j)) * norm(i, j));
  };
  const bool wide = output.dtype == DType::f32;
  // Without accumulation D's previous contents must not matter: they are NaN.
  std::vector<std::uint16_t> d16(static_cast<std::size_t>(wide ? 0 : M * N), 0x7FC0);
  std::vector<float> d32(static_cast<std::size_t>(wide ? M * N : 0), NAN);
  if (output.accumulate) {
#pragma omp parallel for
    for (std::int64_t i = 0; i < M; ++i)
      for (std::int64_t j = 0; j < N; ++j) {
        const auto at = static_cast<std::size_t>(i * N + j);
        const auto value = static_cast<float>(before(i, j));
        if (wide)
          d32[at] = value;
        else
          d16[at] = bf16_encode(value);
      }
  }
  {
    Buffers buffers(device);
    const GemmOperand device_a = buffers.copy_of(a.view), device_b = buffers.copy_of(b.view);
    const Tensor host{wide ? static_cast<void*>(d32.data()) : d16.data(), output.dtype, M, N};
    const Tensor d = buffers.copy_of(host);
    product_of(d, device_a, device_b);
    device.download(host.data, d);
  }

  const Sample sample(M, N, elements);
  const std::int64_t count = sample.count();
  std::vector<double> exact(static_cast<std::size_t>(count));
  double gpu = 0, naive = 0, naive_sum = 0;
  std::int64_t naives = 0;
  const auto got = [&](Sample::At at) {
    const auto place = static_cast<std::size_t>(at.i * N + at.j);
    return static_cast<double>(wide ? d32[place] : bf16_decode(d16[place]));
  };
  // A row far smaller than others under the same FP4 scale may be all zeros; its products are then 0.
  const auto relative = [&](double error, Sample::At at) {
    return error == 0 ? 0 : error / norm(at.i, at.j);
  };
#pragma omp parallel
  {
    std::vector<double> buffer_a, buffer_b, given_a, given_b;
#pragma omp for reduction(+ : gpu, naive, naive_sum, naives)
    for (std::int64_t n = 0; n < count; ++n) {
      const Sample::At at = sample.at(n);
      const double* row_a = a.row(at.i, buffer_a);
      const double* row_b = b.row(at.j, buffer_b);
      const double start = output.accumulate ? before(at.i, at.j) : 0;
      double sum = start;
      for (std::int64_t k = 0; k < K; ++k) sum += row_a[k] * row_b[k];
      exact[static_cast<std::size_t>(n)] = sum;
      const double error = relative(got(at) - sum, at);
      gpu += error * error;
      if (!sample.naive(n)) continue;
      if (rounded) {
        given_a.assign(row_a, row_a + K), given_b.assign(row_b, row_b + K);
        for (std::vector<double>* values : {&given_a, &given_b})
          for (double& v : *values) v = round_to(DType::bf16, v);
        row_a = given_a.data(), row_b = given_b.data();
      }
      const double product = start + naive_dot(row_a, row_b, K, accumulator);
      const double of_sum = relative(product - sum, at),
                   of_output = relative(round_to(output.dtype, product) - sum, at);
      naive_sum += of_sum * of_sum;
      naive += of_output * of_output;
      ++naives;
    }
  }
  const auto rms = [](double squares, std::int64_t n) { return std::sqrt(squares / static_cast<double>(n)); };
  const double noise = kSigmas * std::max(rms(naive_sum, naives), 0x1p-24),
               last_place = wide ? 0x1p-23 : 0x1p-8;
  std::vector<double> buffer_a, buffer_b;
  double worst = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    const Sample::At at = sample.at(n);
    const double truth = exact[static_cast<std::size_t>(n)], error = std::fabs(got(at) - truth);
    // cuBLASLt may round the product to D's dtype before it adds D's previous contents.
    const double rounded_sizes =
        std::fabs(truth) + (output.accumulate ? std::fabs(truth - before(at.i, at.j)) : 0);
    const double of_output = last_place * rounded_sizes;
    double allowed = of_output + noise * norm(at.i, at.j);
    if (error > allowed)  // one large product hides the last bits of all that are added to it
      allowed = std::max(
          allowed, of_output + most_truncated(a.row(at.i, buffer_a), b.row(at.j, buffer_b), K, accumulator));
    const double over = error == 0 ? 0 : error / allowed;
    worst = std::isnan(over) ? std::numeric_limits<double>::infinity() : std::max(worst, over);
  }
  return {rms(gpu, count), rms(naive, naives), worst};
}

}  // namespace precbench::checks
