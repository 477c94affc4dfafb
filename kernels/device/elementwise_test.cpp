// Data movement, sums, fingerprints and weight initialization on the CPU device.
#include <set>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

// The device processes 16384 elements at a time: part of a chunk, exactly one, and two with a remainder.
constexpr std::int64_t kSizes[] = {1, 17, 16384, 40001};

}  // namespace

TEST_CASE("elementwise ops: zero and fill and convert and add give exact values", "[cpu][elementwise]") {
  const auto device = make_cpu_device(2);
  for (std::int64_t n : kSizes) {
    const std::vector<float> a = normal(1, n), b = normal(2, n);
    for (DType dst : {DType::f32, DType::bf16}) {
      const auto as_dst = [&](const std::vector<float>& x) { return dst == DType::f32 ? x : rounded(x); };
      const Owned x(dst, 1, n);
      device->zero({x});
      CHECK(x.floats() == std::vector<float>(n));
      device->fill({x, 1.0f / 3});
      CHECK(x.floats() == as_dst(std::vector<float>(n, 1.0f / 3)));
      for (DType src : {DType::f32, DType::bf16}) {
        const Owned source(src, 1, n, a), target(dst, 1, n, b);
        device->convert({x, source});
        CHECK(x.floats() == as_dst(source.floats()));
        std::vector<float> sum = target.floats();
        const std::vector<float> added = source.floats();
        for (std::int64_t i = 0; i < n; ++i) sum[i] += added[i];
        device->add({target, source});
        CHECK(target.floats() == as_dst(sum));
      }
    }
  }
}

TEST_CASE("convert: equal dtypes copy every bit", "[cpu][elementwise]") {
  const auto device = make_cpu_device(1);
  for (DType dtype : {DType::f32, DType::bf16, DType::e4m3, DType::i32}) {
    const Owned source(dtype, 3, 5);
    Owned target(dtype, 3, 5);
    for (std::int64_t i = 0; i < source.tensor().bytes(); ++i) source.tensor().as<std::uint8_t>()[i] = 37 * i;
    device->convert({target, source});
    CHECK(target.bytes() == source.bytes());
  }
}

TEST_CASE("sum and sum_of_squares: within FP32's worst-case error and accumulate", "[cpu][elementwise]") {
  const auto device = make_cpu_device(2);
  for (std::int64_t n : kSizes)
    for (DType dtype : {DType::f32, DType::bf16}) {
      INFO("n " << n << " " << name_of(dtype));
      const Owned x(dtype, 1, n, normal(1, n));
      double sum = 0, magnitude = 0, squares = 0;
      for (double v : x.doubles()) sum += v, magnitude += std::fabs(v), squares += v * v;
      // Sixteen lanes of at most 1024 additions, 4 to join them, chunks joined in FP64, one rounding.
      constexpr double kBound = (1024 + 4 + 1 + 1) * 0x1p-24;
      for (bool accumulate : {false, true}) {
        const float before = accumulate ? 3.25f : std::nanf("");
        const double start = accumulate ? 3.25 : 0;
        const Owned total(DType::f32, 1, 1, {before}), total_squares(DType::f32, 1, 1, {before});
        device->sum({total, x, accumulate});
        device->sum_of_squares({total_squares, x, accumulate});
        CHECK(std::fabs(total.floats()[0] - (start + sum)) <= kBound * (magnitude + start));
        CHECK(std::fabs(total_squares.floats()[0] - (start + squares)) <= kBound * (squares + start));
      }
    }
}

TEST_CASE("sum: integers are exact", "[cpu][elementwise]") {
  const auto device = make_cpu_device(2);
  std::vector<float> values(40001);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 7) - 2;
    sum += values[i], squares += values[i] * values[i];
  }
  const Owned x(DType::f32, 1, 40001, values), out(DType::f32, 1, 1);
  device->sum({out, x, false});
  CHECK(out.floats()[0] == sum);
  device->sum_of_squares({out, x, false});
  CHECK(out.floats()[0] == squares);
}

TEST_CASE("fingerprint: changes with any bit flip and any swap of elements", "[cpu][elementwise]") {
  const auto device = make_cpu_device(1);
  const auto fingerprint = [&](const Owned& x) {
    const Owned out(DType::i32, 1, 2);
    device->fingerprint({out, x});
    return std::pair(out.tensor().as<std::uint32_t>()[0], out.tensor().as<std::uint32_t>()[1]);
  };
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Owned x(dtype, 1, 67, normal(1, 67));
    const auto original = fingerprint(x);
    const Owned copy = x;
    CHECK(fingerprint(copy) == original);
    std::set<std::pair<std::uint32_t, std::uint32_t>> seen{original};
    std::uint8_t* bytes = copy.tensor().as<std::uint8_t>();
    const std::int64_t bits = copy.tensor().bytes() * 8;
    for (std::int64_t bit = 0; bit < bits; ++bit) {
      bytes[bit / 8] ^= 1 << bit % 8;
      seen.insert(fingerprint(copy));
      bytes[bit / 8] ^= 1 << bit % 8;
    }
    CHECK(static_cast<std::int64_t>(seen.size()) == bits + 1);  // different flips give different fingerprints
    std::vector<float> values = x.floats();
    std::swap(values[3], values[40]);
    CHECK(fingerprint(Owned(dtype, 1, 67, values)) != original);
  }
}

TEST_CASE("init_normal: moments are right and each index has one value", "[cpu][elementwise]") {
  const auto device = make_cpu_device(2);
  constexpr std::int64_t kCount = 400000;
  constexpr float kStd = 0.02f;
  const Owned x(DType::f32, 1, kCount);
  device->init_normal({x, kStd, 42, 1000});
  double sum = 0, squares = 0, neighbours = 0;
  const std::vector<double> values = x.doubles();
  for (std::int64_t i = 0; i < kCount; ++i) {
    sum += values[i] / kStd, squares += values[i] / kStd * values[i] / kStd;
    if (i > 0) neighbours += values[i] / kStd * values[i - 1] / kStd;
    REQUIRE(std::fabs(values[i]) < 4.9 * kStd);
  }
  // Five standard errors each; the variance uses kurtosis 2.85, that of a sum of 8 uniform variates.
  CHECK(std::fabs(sum / kCount) < 5 / std::sqrt(double{kCount}));
  CHECK(std::fabs(squares / kCount - 1) < 5 * std::sqrt((2.85 - 1) / kCount));
  CHECK(std::fabs(neighbours / kCount) < 5 / std::sqrt(double{kCount}));

  // Any part, generated alone and in either dtype, equals that part of the whole.
  for (const auto& [first, count] :
       {std::pair<std::int64_t, std::int64_t>{0, 1}, {16383, 2}, {77777, 30001}}) {
    const Owned part(DType::f32, 1, count), narrow(DType::bf16, 1, count);
    device->init_normal({part, kStd, 42, 1000 + first});
    device->init_normal({narrow, kStd, 42, 1000 + first});
    const std::vector<float> all = x.floats();
    const std::vector<float> expected(all.begin() + first, all.begin() + first + count);
    CHECK(part.floats() == expected);
    CHECK(narrow.floats() == rounded(expected));
  }
  const Owned other(DType::f32, 1, kCount);
  device->init_normal({other, kStd, 43, 1000});
  double product = 0;
  for (std::int64_t i = 0; i < kCount; ++i)
    product += values[i] / kStd * other.tensor().as<float>()[i] / kStd;
  // another seed gives an independent stream
  CHECK(std::fabs(product / kCount) < 5 / std::sqrt(double{kCount}));
}

// ---- any device against the CPU device

namespace {

constexpr std::int64_t kFlatSizes[] = {1, 7, 4096, 100003};

/// Returns the tensor without its first `skip` elements: its address is not 16-byte aligned.
Tensor tail(const Tensor& t, std::int64_t skip) {
  return t.reshape(t.size(), 1).slice_rows(skip, t.size() - skip);
}

}  // namespace

PRECBENCH_OP_TEST(movement_on, "fill, zero, convert and add") {
  for (const std::int64_t size : kFlatSizes)
    for (const std::int64_t skip : {std::int64_t{0}, std::int64_t{1}})
      for (const DType a : {DType::f32, DType::bf16})
        for (const DType other : {DType::f32, DType::bf16}) {
          INFO(size << " elements from " << skip << ", " << name_of(a) << " and " << name_of(other));
          b.start();
          HostMemory& host = b.host();
          const Tensor x = tail(host.random(a, size + skip, 1, 1.0f), skip);
          const Tensor y = tail(host.random(other, size + skip, 1, 3.0f), skip);
          const auto placed = [&](const Tensor& t) {
            const Tensor place = tail(b.output(t.dtype, size + skip, 1), skip);
            b.device().upload(place, t.data);
            b.device().synchronize();
            return place;
          };
          const Tensor dev_x = placed(x), dev_y = placed(y);
          b.device().add({dev_x, dev_y});
          b.cpu().add({x, y});
          CHECK(same_bits(b.fetch(dev_x), x));
          b.device().convert({dev_x, dev_y});
          b.cpu().convert({x, y});
          CHECK(same_bits(b.fetch(dev_x), x));
          b.device().fill({dev_x, 1.7f});
          b.cpu().fill({x, 1.7f});
          CHECK(same_bits(b.fetch(dev_x), x));
          b.device().zero({dev_x});
          b.cpu().zero({x});
          CHECK(same_bits(b.fetch(dev_x), x));
          const std::uint64_t seed = 0x123456789ABCDEF0u;
          constexpr std::int64_t kFar = (std::int64_t{1} << 33) + 5;
          // All elements in a row, and columns of a wider matrix from the middle of a row on.
          for (const ElementMap& index : {ElementMap(kFar), ElementMap(kFar, 5, 11).from(3)}) {
            b.device().init_normal({dev_x, 0.02f, seed, index});
            b.cpu().init_normal({x, 0.02f, seed, index});
            CHECK(same_bits(b.fetch(dev_x), x));
          }
        }
}

PRECBENCH_OP_TEST(sums_on, "sum, sum_of_squares and fingerprint") {
  for (const std::int64_t size : kFlatSizes)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool accumulate : {false, true}) {
        INFO(size << " " << name_of(dtype) << (accumulate ? " +=" : " ="));
        b.start();
        HostMemory& host = b.host();
        const Tensor x = host.random(dtype, size, 1, 1.0f), dev_x = b.put(x);
        double sum = accumulate ? 0.5 : 0.0, squares = sum;
        for (double v : HostMemory::values(x)) sum += v, squares += v * v;
        for (const bool squared : {false, true}) {
          const Tensor naive = host.tensor(DType::f32, 1, 1);
          naive.as<float>()[0] = 0.5f;
          const Tensor out = b.put(naive);
          if (squared) {
            b.device().sum_of_squares({out, dev_x, accumulate});
            b.cpu().sum_of_squares({naive, x, accumulate});
          } else {
            b.device().sum({out, dev_x, accumulate});
            b.cpu().sum({naive, x, accumulate});
          }
          check_twice(squared ? "squares" : "sum", b.fetch(out), naive, {squared ? squares : sum});
        }
        const Tensor words = host.tensor(DType::i32, 1, 2), dev_words = b.output(DType::i32, 1, 2);
        b.cpu().fingerprint({words, x});
        b.device().fingerprint({dev_words, dev_x});
        CHECK(same_bits(b.fetch(dev_words), words));
      }
}

PRECBENCH_OP_TEST(correlate_on, "correlate") {
  for (const std::int64_t size : kFlatSizes)
    for (const auto& [x_type, y_type] :
         {std::pair(DType::f32, DType::f32), std::pair(DType::f32, DType::bf16),
          std::pair(DType::bf16, DType::bf16)})
      for (const bool accumulate : {false, true}) {
        INFO(size << " " << name_of(x_type) << ", " << name_of(y_type) << (accumulate ? " +=" : " ="));
        b.start();
        HostMemory& host = b.host();
        const Tensor x = host.random(x_type, size, 1, 1.0f), y = host.random(y_type, size, 1, 0.5f);
        const std::vector<double> xs = HostMemory::values(x), ys = HostMemory::values(y);
        const double start = accumulate ? 0.5 : 0.0;
        std::vector<double> sums(4, start);
        for (std::size_t i = 0; i < xs.size(); ++i) {
          sums[0] += xs[i] * ys[i];
          sums[1] += xs[i] * xs[i];
          sums[2] += ys[i] * ys[i];
          sums[3] += (xs[i] - ys[i]) * (xs[i] - ys[i]);
        }
        const Tensor naive = host.tensor(DType::f32, 1, 4);
        std::fill_n(naive.as<float>(), 4, 0.5f);
        const Tensor out = b.put(naive);
        b.device().correlate({out, b.put(x), b.put(y), accumulate});
        b.cpu().correlate({naive, x, y, accumulate});
        check_twice("sums", b.fetch(out), naive, sums);
        for (int k = 0; k < 4; ++k)  // FP32 terms and lanes of a chunk, FP64 between chunks
          CHECK(std::fabs(naive.as<float>()[k] - sums[k]) <= 1e-5 * (sums[1] + sums[2] + start));
      }
}
