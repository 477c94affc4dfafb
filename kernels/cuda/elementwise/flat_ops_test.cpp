// The CUDA ops on flat arrays (optimizer, sums, movement, initialisation) against the CPU device, on sizes
// that no vector divides and at addresses where vectors do not fit.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cuda/op_testing.h"

namespace precbench {
namespace {

using namespace op_testing;

constexpr std::int64_t kSizes[] = {1, 7, 4096, 100003};

/// The tensor without its first `skip` elements: an address that is not 16-byte aligned.
Tensor tail(const Tensor& t, std::int64_t skip) {
  return t.reshape(t.size(), 1).slice_rows(skip, t.size() - skip);
}

}  // namespace

TEST_CASE("fill, zero, convert and add", "[gpu]") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const auto cpu = make_cpu_device(2);
  for (const std::int64_t size : kSizes)
    for (const std::int64_t skip : {std::int64_t{0}, std::int64_t{1}})
      for (const DType a : {DType::f32, DType::bf16})
        for (const DType other : {DType::f32, DType::bf16}) {
          INFO(size << " elements from " << skip << ", " << name_of(a) << " and " << name_of(other));
          HostMemory host;
          Buffers buffers(*gpu);
          const Tensor x = tail(host.random(a, size + skip, 1, 1.0f), skip);
          const Tensor y = tail(host.random(other, size + skip, 1, 3.0f), skip);
          const auto placed = [&](const Tensor& t) {
            const Tensor place = tail(buffers.tensor(t.dtype, size + skip, 1), skip);
            gpu->upload(place, t.data);
            gpu->synchronize();
            return place;
          };
          const Tensor gpu_x = placed(x), gpu_y = placed(y);
          gpu->add(gpu_x, gpu_y);
          cpu->add(x, y);
          CHECK(same_bits(fetched(host, *gpu, gpu_x), x));
          gpu->convert(gpu_x, gpu_y);
          cpu->convert(x, y);
          CHECK(same_bits(fetched(host, *gpu, gpu_x), x));
          gpu->fill(gpu_x, 1.7f);
          cpu->fill(x, 1.7f);
          CHECK(same_bits(fetched(host, *gpu, gpu_x), x));
          gpu->zero(gpu_x);
          cpu->zero(x);
          CHECK(same_bits(fetched(host, *gpu, gpu_x), x));
          const std::uint64_t seed = 0x123456789ABCDEF0u;
          gpu->init_normal(gpu_x, 0.02f, seed, (std::int64_t{1} << 33) + 5);
          cpu->init_normal(x, 0.02f, seed, (std::int64_t{1} << 33) + 5);
          CHECK(same_bits(fetched(host, *gpu, gpu_x), x));
        }
}

TEST_CASE("sum, sum_of_squares and fingerprint", "[gpu]") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const auto cpu = make_cpu_device(2);
  for (const std::int64_t size : kSizes)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool accumulate : {false, true}) {
        INFO(size << " " << name_of(dtype) << (accumulate ? " +=" : " ="));
        HostMemory host;
        Buffers buffers(*gpu);
        const Tensor x = host.random(dtype, size, 1, 1.0f), gpu_x = buffers.copy_of(x);
        double sum = accumulate ? 0.5 : 0.0, squares = sum;
        for (double v : HostMemory::values(x)) sum += v, squares += v * v;
        for (const bool squared : {false, true}) {
          const Tensor naive = host.tensor(DType::f32, 1, 1);
          naive.as<float>()[0] = 0.5f;
          const Tensor out = buffers.copy_of(naive);
          if (squared) {
            gpu->sum_of_squares(out, gpu_x, accumulate);
            cpu->sum_of_squares(naive, x, accumulate);
          } else {
            gpu->sum(out, gpu_x, accumulate);
            cpu->sum(naive, x, accumulate);
          }
          check_twice(squared ? "squares" : "sum", fetched(host, *gpu, out), naive,
                      {squared ? squares : sum});
        }
        const Tensor words = host.tensor(DType::i32, 1, 2), gpu_words = buffers.tensor(DType::i32, 1, 2);
        cpu->fingerprint(words, x);
        gpu->fingerprint(gpu_words, gpu_x);
        CHECK(same_bits(fetched(host, *gpu, gpu_words), words));
      }
}

TEST_CASE("adamw in every combination of types", "[gpu]") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const auto cpu = make_cpu_device(2);
  for (const std::int64_t size : kSizes)
    for (const bool with_master : {false, true})
      for (const DType moments : {DType::f32, DType::bf16})
        for (const DType grads : {DType::f32, DType::bf16})
          for (const float max_norm : {0.0f, 1.0f}) {
            INFO(size << (with_master ? ", master" : "") << ", moments " << name_of(moments) << ", gradients "
                      << name_of(grads) << ", max norm " << max_norm);
            HostMemory host;
            Buffers buffers(*gpu);
            const Tensor w = host.random(DType::bf16, size, 1, 0.1f);
            const Tensor master = with_master ? host.converted(w, DType::f32) : Tensor{};
            const Tensor m = host.random(moments, size, 1, 0.01f), v = host.random(moments, size, 1, 0.01f);
            for (std::int64_t i = 0; i < size; ++i)
              HostMemory::set(v, i, std::pow(HostMemory::get(v, i), 2.0f));
            const Tensor g = host.random(grads, size, 1, 0.1f);
            const Tensor norm = host.tensor(DType::f32, 1, 1), scalars = host.tensor(DType::i32, 1, 4);
            norm.as<float>()[0] = 9.0f;
            const StepScalars step{
                .lr = 0.01f, .bias_correction1 = 0.3f, .bias_correction2 = 0.1f, .seed = 5};
            std::memcpy(scalars.data, &step, sizeof step);
            const AdamwOptions options{.max_norm = max_norm};
            // In FP64.
            const double clip = max_norm > 0 ? max_norm / (3.0 + 1e-6) : 1.0;
            std::vector<double> true_w(size), true_m(size), true_v(size);
            for (std::int64_t i = 0; i < size; ++i) {
              const double grad = HostMemory::get(g, i) * clip, w0 = HostMemory::get(w, i);
              true_m[i] =
                  static_cast<double>(options.beta1) * HostMemory::get(m, i) + (1.0 - options.beta1) * grad;
              true_v[i] = static_cast<double>(options.beta2) * HostMemory::get(v, i) +
                          (1.0 - options.beta2) * grad * grad;
              const double update = true_m[i] / step.bias_correction1 /
                                    (std::sqrt(true_v[i] / step.bias_correction2) + options.eps);
              true_w[i] = w0 - step.lr * (update + options.weight_decay * w0);
            }
            const auto copy = [&](const Tensor& t) { return t.empty() ? Tensor{} : buffers.copy_of(t); };
            const Tensor gpu_w = copy(w), gpu_master = copy(master), gpu_m = copy(m), gpu_v = copy(v);
            const Tensor gpu_norm = copy(norm), lone_norm = copy(norm);
            const Tensor lone_master = copy(master), lone_m = copy(m), lone_v = copy(v);
            double true_norm = 9;
            if (max_norm == 0)
              for (const double grad : HostMemory::values(g)) true_norm += grad * grad;
            gpu->adamw(gpu_w, gpu_master, gpu_m, gpu_v, copy(g), copy(scalars), gpu_norm, options);
            cpu->adamw(w, master, m, v, g, scalars, norm, options);
            check_twice("weights", fetched(host, *gpu, gpu_w), w, true_w);
            check_twice("m", fetched(host, *gpu, gpu_m), m, true_m);
            check_twice("v", fetched(host, *gpu, gpu_v), v, true_v);
            if (with_master) check_twice("master", fetched(host, *gpu, gpu_master), master, true_w);
            check_twice("norm", fetched(host, *gpu, gpu_norm), norm, {true_norm});
            if (!with_master) continue;
            // Where nobody reads the weights, the rest is the same.
            gpu->adamw({}, lone_master, lone_m, lone_v, copy(g), copy(scalars), lone_norm, options);
            CHECK(same_bits(fetched(host, *gpu, lone_master), fetched(host, *gpu, gpu_master)));
            CHECK(same_bits(fetched(host, *gpu, lone_m), fetched(host, *gpu, gpu_m)));
            CHECK(same_bits(fetched(host, *gpu, lone_v), fetched(host, *gpu, gpu_v)));
          }
}

TEST_CASE("adamw leaves a weight whose second moment overflows, as the CPU does", "[gpu]") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  HostMemory host;
  Buffers buffers(*gpu);
  constexpr std::int64_t kSize = 8;
  const Tensor w = host.random(DType::f32, kSize, 1, 0.1f), g = host.random(DType::f32, kSize, 1, 0.1f);
  const Tensor m = host.tensor(DType::f32, kSize, 1), v = host.tensor(DType::f32, kSize, 1);
  std::fill_n(m.as<float>(), kSize, 0.0f), std::fill_n(v.as<float>(), kSize, 0.0f);
  v.as<float>()[3] = std::numeric_limits<float>::infinity();
  const Tensor norm = host.tensor(DType::f32, 1, 1), scalars = host.tensor(DType::i32, 1, 4);
  norm.as<float>()[0] = 0;
  const StepScalars step{.lr = 0.01f, .bias_correction1 = 0.3f, .bias_correction2 = 0.1f, .seed = 5};
  std::memcpy(scalars.data, &step, sizeof step);
  const Tensor gpu_w = buffers.copy_of(w);
  const float before = w.as<float>()[3];
  const AdamwOptions options{.weight_decay = 0};
  gpu->adamw({}, gpu_w, buffers.copy_of(m), buffers.copy_of(v), buffers.copy_of(g), buffers.copy_of(scalars),
             buffers.copy_of(norm), options);
  make_cpu_device(1)->adamw({}, w, m, v, g, scalars, norm, options);
  CHECK(w.as<float>()[3] == before);
  CHECK(fetched(host, *gpu, gpu_w).as<float>()[3] == before);
}

TEST_CASE("adamw rounds stochastically by the element's place in the model", "[gpu]") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const auto cpu = make_cpu_device(2);
  constexpr std::int64_t kSize = 20000;
  HostMemory host;
  Buffers buffers(*gpu);
  const Tensor w = host.random(DType::bf16, kSize, 1, 1.0f);
  const Tensor m = host.tensor(DType::f32, kSize, 1), v = host.tensor(DType::f32, kSize, 1);
  const Tensor g = host.tensor(DType::f32, kSize, 1), norm = host.tensor(DType::f32, 1, 1);
  for (const Tensor& t : {m, v, g, norm}) cpu->fill(t, 1.0f);
  // An update of w * 2^-10 alone, exact in FP32 and below the last place of BF16: without chance nothing
  // moves.
  const StepScalars step{.lr = 0x1p-10f, .seed = 11};
  const Tensor scalars = host.tensor(DType::i32, 1, 4);
  std::memcpy(scalars.data, &step, sizeof step);
  cpu->zero(m);
  cpu->zero(g);
  const AdamwOptions options{.weight_decay = 1.0f,
                             .max_norm = 0,
                             .stochastic_rounding = true,
                             .first_index = (std::int64_t{1} << 34) + 3};
  const Tensor before = host.converted(w, DType::bf16), gpu_w = buffers.copy_of(w);
  gpu->adamw(gpu_w, {}, buffers.copy_of(m), buffers.copy_of(v), buffers.copy_of(g), buffers.copy_of(scalars),
             buffers.copy_of(norm), options);
  cpu->adamw(w, {}, m, v, g, scalars, norm, options);
  CHECK(same_bits(fetched(host, *gpu, gpu_w), w));
  CHECK(!same_bits(w, before));
}

}  // namespace precbench
