// Biases of q, k and v on the CPU device: added before RoPE, with their gradient summed over the rows.
#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

TEST_CASE("rope: adds the bias before rotating and to v as well and in place too", "[cpu][rope]") {
  const auto device = make_cpu_device(2);
  const AttentionShape s{2, 33, 4, 2, 8};
  const std::int64_t W = s.qkv_width(), M = s.tokens();
  const std::vector<float> x = normal(1, M * W), b = normal(2, W);
  std::vector<float> sums = x;
  for (std::int64_t i = 0; i < M * W; ++i)
    sums[static_cast<std::size_t>(i)] += b[static_cast<std::size_t>(i % W)];
  const Owned qkv(DType::f32, M, W, x), added(DType::f32, M, W, sums), bias(DType::f32, 1, W, b);
  RopeOptions options{.shape = s};
  options.scaling = {
      .kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 8, .attention_factor = 1.25};
  const Owned expected(DType::f32, M, W), out(DType::f32, M, W), in_place = qkv;
  device->rope({expected, added, options});
  options.bias = bias;
  device->rope({out, qkv, options});
  device->rope({in_place, in_place, options});
  CHECK(out.bytes() == expected.bytes());
  CHECK(in_place.bytes() == expected.bytes());
}

TEST_CASE("rope_backward: with a bias and a QK-norm it is that of the sums", "[cpu][rope]") {
  const auto device = make_cpu_device(2);
  const AttentionShape s{2, 33, 4, 2, 8};
  const std::int64_t W = s.qkv_width(), M = s.tokens(), D = s.head_dim;
  const std::vector<float> x = normal(1, M * W), b = normal(2, W);
  std::vector<float> sums = x;
  for (std::int64_t i = 0; i < M * W; ++i)
    sums[static_cast<std::size_t>(i)] += b[static_cast<std::size_t>(i % W)];
  const Owned qkv(DType::f32, M, W, x), added(DType::f32, M, W, sums), bias(DType::f32, 1, W, b),
      dout(DType::f32, M, W, normal(3, M * W)), gain(DType::f32, 1, D, normal(4, D));
  const auto run = [&](const Owned& in, const Tensor& with) {
    const RopeOptions options{.shape = s, .q_norm = gain, .k_norm = gain, .bias = with};
    const Owned out(DType::f32, M, W), dqkv(DType::f32, M, W), dq(DType::f32, 1, D), dk(DType::f32, 1, D);
    QuantizedTensor gradient = operand(dqkv);
    device->rope({out, in, options});
    device->rope_backward({gradient, dq, dk, false, dout, in, options});
    return std::vector{out.bytes(), dqkv.bytes(), dq.bytes(), dk.bytes()};
  };
  CHECK(run(qkv, bias) == run(added, {}));
}

TEST_CASE("rope_backward: with RoPE scaling it is the transpose of rope", "[cpu][rope]") {
  // YaRN and Llama 3 angles at positions beyond the original context. YaRN multiplies cos and sin by a
  // factor.
  const auto device = make_cpu_device(2);
  const AttentionShape s{1, 20, 2, 1, 8};
  const std::int64_t W = s.qkv_width(), M = s.tokens();
  const RopeScaling scalings[] = {
      {.kind = RopeScaling::Kind::llama3, .factor = 8, .original_context = 6},
      {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 6, .attention_factor = 1.25}};
  for (const RopeScaling& scaling : scalings) {
    const Owned x(DType::f32, M, W, normal(1, M * W)), dout(DType::f32, M, W, normal(2, M * W));
    const Owned y(DType::f32, M, W), plain(DType::f32, M, W), dx(DType::f32, M, W);
    RopeOptions options{.shape = s, .theta = 100.0f};
    device->rope({plain, x, options});
    options.scaling = scaling;
    device->rope({y, x, options});
    CHECK(relative_error(y.floats(), plain.doubles()) > 0.1);
    QuantizedTensor gradient = operand(dx);
    device->rope_backward({gradient, {}, {}, false, dout, {}, options});
    // <dout, R x> = <R^T dout, x>
    CHECK(std::fabs(dot(y.doubles(), dout.floats()) / dot(dx.doubles(), x.floats()) - 1) < 64 * kFp32Error);
  }
}

TEST_CASE("bias_backward: sums the rows in an order independent of the thread count", "[cpu][rope]") {
  for (const std::int64_t rows : {1, 64, 65, 1000}) {
    INFO(rows << " rows");
    constexpr std::int64_t kCols = 24;
    const std::vector<float> values = rounded(normal(3, rows * kCols)), before = rounded(normal(4, kCols));
    std::vector<double> sums(kCols), totals(before.begin(), before.end());
    for (std::int64_t i = 0; i < rows * kCols; ++i)
      sums[static_cast<std::size_t>(i % kCols)] += values[static_cast<std::size_t>(i)];
    for (std::size_t i = 0; i < sums.size(); ++i) totals[i] += sums[i];
    std::vector<std::vector<std::byte>> results;
    for (const int threads : {1, 3})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto device = make_cpu_device(threads);
        const Owned dy(dtype, rows, kCols, values), fresh(DType::f32, 1, kCols),
            added(DType::f32, 1, kCols, before);
        device->bias_backward({fresh, false, dy});
        device->bias_backward({added, true, dy});
        CHECK(relative_error(fresh.floats(), sums) < kFp32Error);
        CHECK(relative_error(added.floats(), totals) < kFp32Error);
        results.push_back(fresh.bytes());
        const Owned narrow(DType::bf16, 1, kCols);
        device->bias_backward({narrow, false, dy});
        CHECK(narrow.floats() == rounded(fresh.floats()));
      }
    for (const auto& other : results) CHECK(other == results[0]);
  }
}

TEST_CASE("add_bias: adds a row to every row", "[cpu][rope]") {
  const auto device = make_cpu_device(2);
  constexpr std::int64_t kRows = 5, kCols = 24;
  const std::vector<float> values = rounded(normal(1, kRows * kCols)), b = rounded(normal(2, kCols));
  std::vector<float> sums = values;
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += b[i % kCols];
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Owned x(dtype, kRows, kCols, values), bias(dtype, 1, kCols, b);
    device->add_bias({x, bias});
    CHECK(x.floats() == (dtype == DType::f32 ? sums : rounded(sums)));
  }
}

// ---- any device against the CPU device

PRECBENCH_OP_TEST(add_bias_on, "add_bias") {
  for (const Size& size : {Size{1, 8}, Size{50, 96}, Size{4099, 768}}) {
    b.start();
    INFO(size.M << " x " << size.C);
    HostMemory& host = b.host();
    const Tensor x = host.random(DType::bf16, size.M, size.C, 1.0f),
                 bias = host.random(DType::bf16, 1, size.C, 1.0f);
    const Tensor got = b.put(x), dev_bias = b.put(bias);
    b.device().add_bias({got, dev_bias});
    b.cpu().add_bias({x, bias});
    CHECK(same_bits(b.fetch(got), x));  // one rounding of one sum
  }
}

PRECBENCH_OP_TEST(bias_on, "bias_backward") {
  // One row; fewer rows than one run of rows; many runs; a last column block that is not full.
  std::vector<Size> sizes = {{1, 8}, {50, 96}, {4099, 768}, {8192, 4608}};
  if (b.on_cpu()) sizes.pop_back();  // fills a GPU's grid; drawing its numbers takes seconds
  for (const Size& size : sizes)
    for (const DType grad : {DType::f32, DType::bf16})
      for (const bool accumulate : {false, true}) {
        b.start();
        INFO(size.M << " x " << size.C << ", dbias " << name_of(grad) << (accumulate ? ", added" : ""));
        HostMemory& host = b.host();
        const Tensor dy = host.random(DType::bf16, size.M, size.C, 1.0f),
                     before = host.random(grad, 1, size.C, 1.0f);
        std::vector<double> truth(static_cast<std::size_t>(size.C));
        for (std::int64_t i = 0; i < size.C; ++i) {
          if (accumulate) truth[i] = HostMemory::get(before, i);
          for (std::int64_t row = 0; row < size.M; ++row) truth[i] += HostMemory::get(dy, row * size.C + i);
        }
        const Tensor naive = host.converted(before, grad);
        b.cpu().bias_backward({naive, accumulate, dy});
        const Tensor dev_dy = b.put(dy), dbias = b.put(before), again = b.put(before);
        b.device().bias_backward({dbias, accumulate, dev_dy});
        b.device().bias_backward({again, accumulate, dev_dy});
        check_twice("dbias", b.fetch(dbias), naive, truth);
        CHECK(same_bits(b.fetch(dbias), b.fetch(again)));
      }
}
