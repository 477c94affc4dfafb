// Distances of next-token distributions against FP64.
#include <cmath>
#include <vector>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Returns the log-probabilities of a row of logits in extended precision.
std::vector<long double> log_softmax(const std::vector<double>& logits) {
  long double total = 0, largest = logits[0];
  for (const double z : logits) largest = std::max<long double>(largest, z);
  for (const double z : logits) total += std::exp(z - largest);
  std::vector<long double> result;
  for (const double z : logits) result.push_back(z - largest - std::log(total));
  return result;
}

struct Distance {
  double log_probability, divergence;
};

Distance distance_of(const std::vector<double>& reference, const std::vector<double>& logits, int target) {
  const std::vector<long double> p = log_softmax(reference), q = log_softmax(logits);
  long double divergence = 0;
  for (std::size_t v = 0; v < p.size(); ++v) divergence += std::exp(p[v]) * (p[v] - q[v]);
  return {static_cast<double>(q[target] - p[target]), static_cast<double>(divergence)};
}

}  // namespace

PRECBENCH_OP_TEST(compare_logits_on, "compare_logits, against FP64") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Size& size : {Size{5, 1}, Size{9, 50}, Size{300, 257}, Size{3, 40001}})
      for (const float apart : {1e-4f, 0.05f, 5.0f}) {
        b.start();
        HostMemory& host = b.host();
        const auto [M, V] = size;
        INFO(name_of(dtype) << " " << M << " x " << V << ", " << apart << " apart");
        const Tensor reference = host.random(dtype, M, V, 3.0f), noise = host.random(DType::f32, M, V, apart),
                     logits = host.tensor(dtype, M, V), targets = host.tokens(M, V);
        for (std::int64_t i = 0; i < M * V; ++i)
          HostMemory::set(logits, i, HostMemory::get(reference, i) + HostMemory::get(noise, i));
        HostMemory::set(reference, 0, 80.0f);  // takes the whole probability of row 0
        const Tensor out = b.output(DType::f32, M, 2);
        b.device().compare_logits({out, b.put(reference), b.put(logits), b.put(targets)});
        const Tensor result = b.fetch(out);
        for (std::int64_t r = 0; r < M; ++r) {
          std::vector<double> p, q;
          for (std::int64_t v = 0; v < V; ++v) {
            p.push_back(HostMemory::get(reference, r * V + v));
            q.push_back(HostMemory::get(logits, r * V + v));
          }
          const Distance expected = distance_of(p, q, targets.as<std::int32_t>()[r]);
          CHECK_THAT(HostMemory::get(result, 2 * r),
                     Catch::Matchers::WithinAbs(expected.log_probability,
                                                1e-12 + 1e-7 * std::fabs(expected.log_probability)));
          CHECK_THAT(
              HostMemory::get(result, 2 * r + 1),
              Catch::Matchers::WithinAbs(expected.divergence, 1e-12 + 1e-7 * std::fabs(expected.divergence)));
        }
      }
}

PRECBENCH_OP_TEST(compare_equal_logits_on, "compare_logits, equal and invalid rows") {
  HostMemory& host = b.host();
  const Tensor reference = host.random(DType::f32, 4, 100, 2.0f),
               logits = host.converted(reference, DType::f32);
  HostMemory::set(logits, 130, std::nanf(""));
  HostMemory::set(logits, 230, INFINITY);
  for (int i = 0; i < 100; ++i)  // a constant that the softmax ignores
    HostMemory::set(logits, 300 + i, HostMemory::get(reference, 300 + i) + 64.0f);
  const Tensor out = b.output(DType::f32, 4, 2);
  b.device().compare_logits({out, b.put(reference), b.put(logits), b.put(host.tokens(4, 100))});
  const Tensor result = b.fetch(out);
  CHECK((HostMemory::get(result, 0) == 0 && HostMemory::get(result, 1) == 0));
  for (const int row : {1, 2})
    CHECK_FALSE((std::isfinite(HostMemory::get(result, 2 * row)) &&
                 std::isfinite(HostMemory::get(result, 2 * row + 1))));
  CHECK(std::fabs(HostMemory::get(result, 6)) < 1e-4);  // the sums are FP32 numbers before the op
  CHECK(std::fabs(HostMemory::get(result, 7)) < 1e-4);
}
