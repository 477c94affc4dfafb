// Attention on the GPU, cuDNN's and ours, against its definition in FP64: at most twice as far from it as a
// plain BF16 program is (attention_reference.h).
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/cuda/attention/attention_reference.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/gpu/gpu_testing.h"
#include "kernels/gpu/graph.h"
#include "kernels/numerics/random.h"
#include "tools/testing/catch.h"

namespace precbench {
namespace {

std::vector<std::uint16_t> random_bf16(std::int64_t count, float deviation, std::uint64_t seed) {
  std::vector<std::uint16_t> x(count);
  for (std::int64_t i = 0; i < count; ++i) x[i] = bf16_encode(deviation * irwin_hall_normal(seed, i));
  return x;
}

// Tensors of one attention on the device. Outputs start as NaN, so that what is not written shows.
class Problem {
 public:
  Problem(CudaDevice& device, const AttentionShape& shape, float deviation)
      : device_(device),
        shape_(shape),
        qkv_values(random_bf16(shape.tokens() * shape.qkv_width(), deviation, 1)),
        dout_values(random_bf16(shape.tokens() * shape.q_width(), 1.0f, 2)),
        qkv_(make(DType::bf16, shape.tokens(), shape.qkv_width())),
        dqkv_(make(DType::bf16, shape.tokens(), shape.qkv_width())),
        dout_(make(DType::bf16, shape.tokens(), shape.q_width())),
        lse_(make(DType::f32, shape.heads, shape.tokens())) {
    out_.value = make(DType::bf16, shape.tokens(), shape.q_width());
    device_.upload(qkv_, qkv_values.data());
    device_.upload(dout_, dout_values.data());
  }
  ~Problem() {
    for (const Tensor& x : {qkv_, dqkv_, dout_, lse_, out_.value}) device_.deallocate(x.data);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  void clear() {
    for (const Tensor& x : {dqkv_, lse_, out_.value}) {
      const std::vector<std::uint8_t> ones(x.bytes(), 0xFF);
      device_.upload(x, ones.data());
    }
  }
  void forward() { device_.attention({out_, lse_, qkv_, shape_}); }
  void backward() { device_.attention_backward({dqkv_, dout_, out_.value, lse_, qkv_, shape_}); }

  AttentionResult result() {
    AttentionResult r;
    for (const std::uint16_t x : download<std::uint16_t>(out_.value)) r.out.push_back(bf16_decode(x));
    for (const std::uint16_t x : download<std::uint16_t>(dqkv_)) r.dqkv.push_back(bf16_decode(x));
    for (const float x : download<float>(lse_)) r.lse.push_back(x);
    return r;
  }

  // All bits that were computed.
  std::vector<std::uint8_t> bits() {
    std::vector<std::uint8_t> all;
    for (const Tensor& x : {out_.value, lse_, dqkv_}) {
      const auto bytes = download<std::uint8_t>(x);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

 private:
  Tensor make(DType dtype, std::int64_t rows, std::int64_t cols) {
    return {device_.allocate(bytes_of(dtype, rows * cols)), dtype, rows, cols};
  }
  template <class T>
  std::vector<T> download(const Tensor& x) {
    std::vector<T> host(x.bytes() / sizeof(T));
    device_.download(host.data(), x);
    return host;
  }

  CudaDevice& device_;
  AttentionShape shape_;

 public:
  const std::vector<std::uint16_t> qkv_values, dout_values;

 private:
  Tensor qkv_, dqkv_, dout_, lse_;
  QuantizedTensor out_;
};

struct Part {
  const char* name;
  std::vector<double> AttentionResult::*values;
  std::int64_t width, first, count;
};

void check_close(const AttentionShape& s, const AttentionResult& got, const AttentionResult& truth,
                 const AttentionResult& naive) {
  const std::int64_t q = s.q_width(), kv = s.kv_heads * s.head_dim, fused = s.qkv_width();
  const std::vector<double> zeros(truth.dqkv.size());
  // Where terms cancel exactly (dq and dk of a first token are 0), what is left is the FP32 rounding of those
  // terms.
  const double fp32_noise = std::ldexp(rms_difference(truth.dqkv, zeros, fused, q + kv, kv), -16);
  for (const Part& part :
       {Part{"out", &AttentionResult::out, q, 0, q}, Part{"dq", &AttentionResult::dqkv, fused, 0, q},
        Part{"dk", &AttentionResult::dqkv, fused, q, kv},
        Part{"dv", &AttentionResult::dqkv, fused, q + kv, kv}}) {
    const auto distance = [&](const AttentionResult& x) {
      return rms_difference(x.*part.values, truth.*part.values, part.width, part.first, part.count);
    };
    INFO(part.name << " of B " << s.B << " T " << s.T << " heads " << s.heads << ":" << s.kv_heads
                   << " head_dim " << s.head_dim);
    CHECK(distance(got) <= 2 * distance(naive) + fp32_noise);
  }
  // An error in lse is a relative error of the probabilities, which are rounded to BF16 (2^-9) next: 1/32 of
  // that.
  INFO("lse of T " << s.T << " head_dim " << s.head_dim);
  CHECK(rms_difference(got.lse, truth.lse, 1, 0, 1) <= std::ldexp(1.0, -14));
}

// Sets the implementation, or says why it is not there.
bool use(CudaDevice& device, const std::string& which) {
  try {
    device.set_attention(which);
    return true;
  } catch (const Unsupported& refusal) {
    WARN(refusal.what());
    return false;
  }
}

struct Case {
  AttentionShape shape;
  float deviation = 1.5f;
};

// Tile edges on both sides, ragged tails, every group size; small T with many heads, so that the errors
// compared are means over many roundings.
std::vector<Case> cases() {
  std::vector<Case> list;
  for (const std::int64_t T : {1, 2, 3, 7, 15, 16, 17, 31, 32, 33}) list.push_back({{3, T, 8, 2, 32}});
  for (const std::int64_t T : {63, 64, 65, 95, 96, 97, 127, 128, 129}) list.push_back({{2, T, 4, 2, 64}});
  for (const std::int64_t T : {191, 192, 193, 255, 256, 257, 300}) list.push_back({{1, T, 2, 1, 128}});
  for (const std::int64_t D : {16, 32, 40, 64, 80, 96, 112, 128}) list.push_back({{2, 77, 4, 4, D}});
  for (const std::int64_t kv_heads : {8, 4, 2, 1}) {
    list.push_back({{1, 150, 8, kv_heads, 64}});
    list.push_back({{3, 131, 8, kv_heads, 128}});
  }
  list.push_back({{2, 200, 4, 2, 64}, 6.0f});    // nearly one-hot rows
  list.push_back({{2, 200, 4, 2, 128}, 0.02f});  // nearly equal weights
  return list;
}

}  // namespace

TEST_CASE("attention and its backward are as exact as BF16 allows", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  const bool cudnn = use(device, "cudnn");
  std::size_t by_cudnn = 0;
  for (const Case& c : cases()) {
    Problem problem(device, c.shape, c.deviation);
    const auto truth = attention_reference<double>(c.shape, problem.qkv_values, problem.dout_values);
    const auto naive = attention_reference<float>(c.shape, problem.qkv_values, problem.dout_values);
    for (const char* which : {"own", "cudnn"}) {
      if (std::strcmp(which, "cudnn") == 0 && !cudnn) continue;
      device.set_attention(which);
      problem.clear();
      try {
        problem.forward();
        problem.backward();
      } catch (const Unsupported& refusal) {
        INFO(refusal.what());
        CHECK(std::strcmp(which, "cudnn") == 0);  // ours takes all of them
        continue;
      }
      by_cudnn += std::strcmp(which, "cudnn") == 0;
      INFO(which);
      check_close(c.shape, problem.result(), truth, naive);
    }
  }
  if (cudnn) CHECK(by_cudnn >= cases().size() / 2);
}

TEST_CASE("lse of either implementation serves the backward pass of the other", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  if (!use(device, "cudnn")) return;
  const AttentionShape shape{2, 256, 4, 2, 64};
  Problem problem(device, shape, 1.5f);
  const auto truth = attention_reference<double>(shape, problem.qkv_values, problem.dout_values);
  const auto naive = attention_reference<float>(shape, problem.qkv_values, problem.dout_values);
  for (const auto& [forward, backward] : {std::pair("cudnn", "own"), std::pair("own", "cudnn")}) {
    problem.clear();
    device.set_attention(forward);
    problem.forward();
    device.set_attention(backward);
    problem.backward();
    CHECK(device.attention_name().find(" forward, ") != std::string::npos);
    check_close(shape, problem.result(), truth, naive);
  }
}

TEST_CASE("a deterministic backward pass repeats bit for bit", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  device.set_deterministic(true);
  for (const char* which : {"own", "cudnn"}) {
    if (!use(device, which)) continue;
    for (const AttentionShape& shape :
         {AttentionShape{1, 1024, 8, 2, 128}, AttentionShape{2, 640, 8, 8, 64}}) {
      Problem problem(device, shape, 1.5f);
      std::optional<std::vector<std::uint8_t>> first;
      for (int i = 0; i < 4; ++i) {
        problem.clear();
        problem.forward();
        problem.backward();
        const auto bits = problem.bits();
        if (!first) first = bits;
        INFO(which << " run " << i);
        CHECK((bits == *first));
      }
    }
  }
}

TEST_CASE("attention replayed from a graph computes the same bits", "[gpu][attention][graph]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  device.set_deterministic(true);
  for (const char* which : {"own", "cudnn"}) {
    if (!use(device, which)) continue;
    for (const std::int64_t T : {384, 333}) {  // 333: cuDNN's tail lengths are copied in from the host
      const AttentionShape shape{1, T, 8, 2, 128};
      Problem problem(device, shape, 1.5f);
      problem.clear();
      problem.forward();
      problem.backward();
      const auto eager = problem.bits();
      const auto graph = capture_step(device, [&] {
        problem.forward();
        problem.backward();
      });
      for (int i = 0; i < 2; ++i) {
        problem.clear();
        graph->replay();
        INFO(which << " T " << T << " replay " << i);
        CHECK((problem.bits() == eager));
      }
    }
  }
}

TEST_CASE("a NaN in one head's keys reaches that head's later rows only", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  for (const char* which : {"own", "cudnn"}) {
    if (!use(device, which)) continue;
    const AttentionShape s{1, 256, 2, 2, 64};
    std::vector<std::uint16_t> values = random_bf16(s.tokens() * s.qkv_width(), 1.0f, 3);
    const std::int64_t poisoned = 100;
    values[poisoned * s.qkv_width() + (s.heads + 1) * s.head_dim] = 0x7FC0;  // key of head 1
    Tensor qkv{device.allocate(values.size() * 2), DType::bf16, s.tokens(), s.qkv_width()};
    Tensor lse{device.allocate(s.tokens() * s.heads * 4), DType::f32, s.heads, s.tokens()};
    QuantizedTensor out;
    out.value = {device.allocate(s.tokens() * s.q_width() * 2), DType::bf16, s.tokens(), s.q_width()};
    device.upload(qkv, values.data());
    device.attention({out, lse, qkv, s});
    std::vector<std::uint16_t> got(s.tokens() * s.q_width());
    device.download(got.data(), out.value);
    bool as_expected = true;
    for (std::int64_t t = 0; t < s.T; ++t)
      for (std::int64_t head = 0; head < s.heads; ++head) {
        const bool nan = std::isnan(bf16_decode(got[t * s.q_width() + head * s.head_dim]));
        if (head == 1 && t < poisoned && std::strcmp(which, "cudnn") == 0)
          continue;  // it may add masks, not select
        as_expected &= nan == (head == 1 && t >= poisoned);
      }
    INFO(which);
    CHECK(as_expected);
    for (const Tensor& x : {qkv, lse, out.value}) device.deallocate(x.data);
  }
}

TEST_CASE("the choice of attention is by name, and refusals say what to do", "[gpu][attention]") {
  if (!gpu_here()) return;
  CudaDevice device(0);
  CHECK(device.attention_name() == "none yet");
  CHECK_THROWS_AS(device.set_attention("cudn"), InvalidInput);
  device.set_attention("own");
  const AttentionShape wide{1, 64, 1, 1, 136};
  Problem problem(device, wide, 1.0f);
  CHECK_THROWS_AS(problem.forward(), Unsupported);
  Problem small(device, {1, 64, 2, 1, 64}, 1.0f);
  small.forward();
  CHECK(device.attention_name() == "own");
}

}  // namespace precbench
