// Memory of an attention check. See attention_problem.h.
#include "kernels/checks/attention_problem.h"

#include "kernels/numerics/random.h"

namespace precbench::checks {
namespace {

std::vector<std::uint16_t> random_bf16(std::int64_t count, float deviation, std::uint64_t seed) {
  std::vector<std::uint16_t> x(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    x[static_cast<std::size_t>(i)] =
        bf16_encode(deviation * irwin_hall_normal(seed, static_cast<std::uint64_t>(i)));
  return x;
}

}  // namespace

AttentionProblem::AttentionProblem(Device& device, const AttentionShape& shape, float deviation)
    : device_(device),
      shape_(shape),
      qkv_values(random_bf16(shape.tokens() * shape.qkv_width(), deviation, 1)),
      dout_values(random_bf16(shape.tokens() * shape.out_width(), 1.0f, 2)),
      kv_values(random_bf16(shape.square() ? 0 : shape.B * shape.keys() * shape.kv_width(), deviation, 3)),
      buffers_(device),
      qkv_(buffers_.tensor(DType::bf16, shape.tokens(), shape.qkv_width())),
      dqkv_(buffers_.tensor(DType::bf16, shape.tokens(), shape.qkv_width())),
      dout_(buffers_.tensor(DType::bf16, shape.tokens(), shape.out_width())),
      lse_(buffers_.tensor(DType::f32, shape.heads, shape.tokens())) {
  out_.value = buffers_.tensor(DType::bf16, shape.tokens(), shape.out_width());
  device_.upload(qkv_, qkv_values.data());
  device_.upload(dout_, dout_values.data());
  if (!shape.square()) {
    kv_ = buffers_.tensor(DType::bf16, shape.B * shape.keys(), shape.kv_width());
    dkv_ = buffers_.tensor(DType::bf16, shape.B * shape.keys(), shape.kv_width());
    device_.upload(kv_, kv_values.data());
  }
  device_.synchronize();
}

void AttentionProblem::clear() {
  for (const Tensor& x : {dqkv_, lse_, out_.value, dkv_}) {
    if (x.empty()) continue;
    const std::vector<std::uint8_t> ones(static_cast<std::size_t>(x.bytes()), 0xFF);
    device_.upload(x, ones.data());
    device_.synchronize();
  }
}

template <class T>
std::vector<T> AttentionProblem::download(const Tensor& x) {
  std::vector<T> host(static_cast<std::size_t>(x.bytes()) / sizeof(T));
  device_.download(host.data(), x);
  return host;
}

AttentionResult AttentionProblem::result() {
  AttentionResult r;
  for (const std::uint16_t x : download<std::uint16_t>(out_.value)) r.out.push_back(bf16_decode(x));
  for (const std::uint16_t x : download<std::uint16_t>(dqkv_)) r.dqkv.push_back(bf16_decode(x));
  for (const float x : download<float>(lse_)) r.lse.push_back(x);
  if (!dkv_.empty())
    for (const std::uint16_t x : download<std::uint16_t>(dkv_)) r.dkv.push_back(bf16_decode(x));
  return r;
}

std::vector<std::uint8_t> AttentionProblem::bits() {
  std::vector<std::uint8_t> all;
  for (const Tensor& x : {out_.value, lse_, dqkv_, dkv_}) {
    if (x.empty()) continue;
    const auto bytes = download<std::uint8_t>(x);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

}  // namespace precbench::checks
