// AdamW on every device against the formulas in FP64, and stochastic rounding against its expectation.
#include <algorithm>
#include <cstring>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr StepScalars kScalars{
    .lr = 3e-3f, .bias_correction1 = 0.271f, .bias_correction2 = 0.142625f, .seed = 7};

struct State {
  Owned weights, master, m, v, gradient;
};

/// The CPU device processes chunks of 4096 elements: this is one full chunk and part of a second.
constexpr std::int64_t kSize = 5000;

State state(bool with_master, DType moments, DType gradients) {
  const std::vector<float> weights = normal(1, kSize, 0.02f);
  std::vector<float> v = normal(3, kSize, 1e-3f);
  for (float& value : v) value *= value;
  State s{{DType::bf16, 1, kSize, weights},
          {},
          {moments, 1, kSize, rounded(normal(2, kSize, 1e-3f))},
          {moments, 1, kSize, rounded(v)},
          {gradients, 1, kSize, rounded(normal(4, kSize, 1e-2f))}};
  if (with_master) s.master = {DType::f32, 1, kSize, weights};
  return s;
}

/// Runs one AdamW step and returns norm_squared as the op leaves it.
float adamw_step(Device& device, const State& s, const StepScalars& scalars, float norm,
                 const UpdateOptions& options) {
  Owned words(DType::f32, 1, 4);
  std::memcpy(words.tensor().data, &scalars, sizeof scalars);
  const Owned squared(DType::f32, 1, 1, {norm * norm});
  device.adamw({s.weights, s.master, s.m, s.v, s.gradient, words, squared, options});
  return squared.floats()[0];
}

struct Reference {
  std::vector<double> w, m, v;
};

/// FP64 reference: Loshchilov & Hutter 2019, Algorithm 2, with PyTorch's clipping. It uses the constants of
/// `o`, since a float 0.9 is not 0.9.
Reference adamw(const std::vector<double>& w, const State& s, double norm, const UpdateOptions& o) {
  const double clip = o.max_norm > 0 ? std::min(1.0, o.max_norm / (norm + 1e-6)) : 1.0;
  Reference r{w, s.m.doubles(), s.v.doubles()};
  const std::vector<double> g = s.gradient.doubles();
  for (std::size_t i = 0; i < w.size(); ++i) {
    r.m[i] = o.beta1 * r.m[i] + (1.0 - o.beta1) * g[i] * clip;
    r.v[i] = o.beta2 * r.v[i] + (1.0 - o.beta2) * g[i] * clip * g[i] * clip;
    const double update =
        r.m[i] / kScalars.bias_correction1 / (std::sqrt(r.v[i] / kScalars.bias_correction2) + o.eps);
    r.w[i] = w[i] - kScalars.lr * update - kScalars.lr * o.weight_decay * w[i];
  }
  return r;
}

/// Returns the step itself, after - before. Compared with whole weights, an error in the step would be
/// invisible.
std::vector<double> difference(const std::vector<double>& after, const std::vector<double>& before) {
  std::vector<double> d(after);
  for (std::size_t i = 0; i < d.size(); ++i) d[i] -= before[i];
  return d;
}

}  // namespace

TEST_CASE("adamw: FP32 step equals the FP64 formula with and without clipping and decay", "[cpu][adamw]") {
  const auto device = make_cpu_device(2);
  for (float norm : {0.25f, 4.0f})
    for (float max_norm : {0.0f, 1.0f})
      for (float weight_decay : {0.0f, 0.1f})
        for (DType gradients : {DType::f32, DType::bf16}) {
          INFO("norm " << norm << " max " << max_norm << " decay " << weight_decay);
          const UpdateOptions options{.weight_decay = weight_decay, .max_norm = max_norm};
          const State s = state(true, DType::f32, gradients);
          const std::vector<double> before = s.master.doubles();
          const Reference want = adamw(before, s, norm, options);
          adamw_step(*device, s, kScalars, norm, options);
          CHECK(relative_error(s.m.floats(), want.m) < kFp32Error);
          CHECK(relative_error(s.v.floats(), want.v) < kFp32Error);
          // The master rounds relative to its own size, which is about 10 times the step's.
          CHECK(relative_error(difference(s.master.doubles(), before), difference(want.w, before)) <
                10 * kFp32Error);
          CHECK(s.weights.floats() == rounded(s.master.floats()));
        }
}

TEST_CASE("adamw: adds the gradient's squares to the norm without clipping and leaves it alone with clipping",
          "[cpu][adamw]") {
  const auto device = make_cpu_device(2);
  for (DType gradients : {DType::f32, DType::bf16}) {
    const State s = state(true, DType::f32, gradients);
    double squares = 0;
    for (double g : s.gradient.doubles()) squares += g * g;
    // Sixteen lanes of at most 256 additions, 4 to join them, one to round and one to add.
    constexpr double kBound = (256 + 4 + 1 + 1) * 0x1p-24;
    CHECK(std::fabs(adamw_step(*device, s, kScalars, 2.0f, {.max_norm = 0}) - (4 + squares)) <=
          kBound * (4 + squares));
    CHECK(adamw_step(*device, s, kScalars, 2.0f, {.max_norm = 1}) == 4.0f);
  }
}

TEST_CASE("adamw: BF16 moments and weights equal the FP32 step rounded once", "[cpu][adamw]") {
  const auto device = make_cpu_device(2);
  State wide = state(true, DType::f32, DType::f32), narrow = state(true, DType::bf16, DType::bf16);
  State bare = state(false, DType::f32, DType::f32), own = state(true, DType::f32, DType::f32);
  // initial values of the weights without a master
  own.master = {DType::f32, 1, kSize, own.weights.floats()};
  for (State* s : {&wide, &narrow, &bare, &own}) adamw_step(*device, *s, kScalars, 2.0f, {});
  CHECK(narrow.m.floats() == rounded(wide.m.floats()));
  CHECK(narrow.v.floats() == rounded(wide.v.floats()));
  CHECK(narrow.master.bytes() == wide.master.bytes());
  CHECK(bare.weights.bytes() == own.weights.bytes());
}

TEST_CASE("adamw: stochastic rounding picks an adjacent BF16 value and is unbiased", "[cpu][adamw]") {
  const auto device = make_cpu_device(1);
  constexpr int kSeeds = 256;
  State start = state(true, DType::f32, DType::f32);
  start.master = {DType::f32, 1, kSize, start.weights.floats()};
  const State before = start;
  adamw_step(*device, start, kScalars, 2.0f, {});
  const std::vector<float> target = start.master.floats();

  std::vector<double> mean(kSize);
  std::int64_t elsewhere = 0;
  for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
    State s = before;
    s.master = {};
    StepScalars scalars = kScalars;
    scalars.seed = seed;
    adamw_step(*device, s, scalars, 2.0f, {.stochastic_rounding = true});
    const std::vector<float> got = s.weights.floats();
    double deviation = 0, variance = 0;  // this seed's sum over elements, in units of the gap
    for (std::int64_t i = 0; i < kSize; ++i) {
      const float down = bf16_decode(static_cast<std::uint16_t>(float_to_bits(target[i]) >> 16));
      const float up = bf16_decode(static_cast<std::uint16_t>((float_to_bits(target[i]) >> 16) + 1));
      elsewhere += got[i] != down && got[i] != up;
      mean[i] += static_cast<double>(got[i]) / kSeeds;
      const double fraction = (static_cast<double>(target[i]) - down) / (static_cast<double>(up) - down);
      deviation += (got[i] == up) - fraction;
      variance += fraction * (1 - fraction);
    }
    // A normal variate exceeds 5 deviations with probability 6e-7. The seeds are fixed, so this cannot be
    // flaky.
    REQUIRE(std::fabs(deviation) < 5 * std::sqrt(variance));
  }
  CHECK(elsewhere == 0);
  // Per element, over seeds: the sum of squared normalized deviations is chi-squared.
  double chi_squared = 0, elements = 0;
  for (std::int64_t i = 0; i < kSize; ++i) {
    const double down = bf16_decode(static_cast<std::uint16_t>(float_to_bits(target[i]) >> 16));
    const double gap = bf16_decode(static_cast<std::uint16_t>((float_to_bits(target[i]) >> 16) + 1)) - down;
    const double fraction = (target[i] - down) / gap;
    if (fraction < 0.05 || fraction > 0.95) continue;  // 256 draws are far from normal there
    const double z = (mean[i] - target[i]) / gap / std::sqrt(fraction * (1 - fraction) / kSeeds);
    chi_squared += z * z;
    ++elements;
  }
  CHECK(elements > 0.8 * kSize);
  CHECK(std::fabs(chi_squared - elements) < 5 * std::sqrt(2 * elements));
}

TEST_CASE("adamw: stochastic rounding depends on the element's index in the model and not on the split",
          "[cpu][adamw]") {
  const auto device = make_cpu_device(2);
  const UpdateOptions options{.stochastic_rounding = true, .index = 1000};
  const State whole = state(false, DType::bf16, DType::bf16), parts = whole, elsewhere = whole;
  adamw_step(*device, whole, kScalars, 2.0f, options);
  constexpr std::int64_t kCut = 123;
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, kCut}, {kCut, kSize - kCut}}) {
    Owned words(DType::f32, 1, 4);
    std::memcpy(words.tensor().data, &kScalars, sizeof kScalars);
    UpdateOptions part = options;
    part.index = part.index.from(first);
    const auto cut = [&, first = first, count = count](const Owned& t) {
      return t.tensor().reshape(kSize, 1).slice_rows(first, count);
    };
    device->adamw({cut(parts.weights),
                   {},
                   cut(parts.m),
                   cut(parts.v),
                   cut(parts.gradient),
                   words,
                   Owned(DType::f32, 1, 1, {4.0f}),
                   part});
  }
  CHECK(parts.weights.bytes() == whole.weights.bytes());
  CHECK(parts.m.bytes() == whole.m.bytes());
  adamw_step(*device, elsewhere, kScalars, 2.0f, {.stochastic_rounding = true, .index = 1001});
  CHECK(elsewhere.weights.bytes() != whole.weights.bytes());
}

TEST_CASE("adamw: zero learning rate changes no weight with stochastic rounding either", "[cpu][adamw]") {
  const auto device = make_cpu_device(1);
  const State s = state(false, DType::f32, DType::f32), before = s;
  StepScalars scalars = kScalars;
  scalars.lr = 0;
  adamw_step(*device, s, scalars, 2.0f, {.stochastic_rounding = true});
  CHECK(s.weights.bytes() == before.weights.bytes());
}

// ---- any device against the CPU device

namespace {

constexpr std::int64_t kSpanSizes[] = {1, 7, 4096, 100003};

}  // namespace

PRECBENCH_OP_TEST(adamw_on, "adamw in every combination of types") {
  for (const std::int64_t size : kSpanSizes)
    for (const bool with_master : {false, true})
      for (const DType moments : {DType::f32, DType::bf16})
        for (const DType grads : {DType::f32, DType::bf16})
          for (const float max_norm : {0.0f, 1.0f}) {
            INFO(size << (with_master ? ", master" : "") << ", moments " << name_of(moments) << ", gradients "
                      << name_of(grads) << ", max norm " << max_norm);
            b.start();
            HostMemory& host = b.host();
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
            const UpdateOptions options{.max_norm = max_norm};
            // FP64 reference.
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
            const auto copy = [&](const Tensor& t) { return t.empty() ? Tensor{} : b.put(t); };
            const Tensor dev_w = copy(w), dev_master = copy(master), dev_m = copy(m), dev_v = copy(v);
            const Tensor dev_norm = copy(norm), lone_norm = copy(norm);
            const Tensor lone_master = copy(master), lone_m = copy(m), lone_v = copy(v);
            double true_norm = 9;
            if (max_norm == 0)
              for (const double grad : HostMemory::values(g)) true_norm += grad * grad;
            b.device().adamw({dev_w, dev_master, dev_m, dev_v, copy(g), copy(scalars), dev_norm, options});
            b.cpu().adamw({w, master, m, v, g, scalars, norm, options});
            check_twice("weights", b.fetch(dev_w), w, true_w);
            check_twice("m", b.fetch(dev_m), m, true_m);
            check_twice("v", b.fetch(dev_v), v, true_v);
            if (with_master) check_twice("master", b.fetch(dev_master), master, true_w);
            check_twice("norm", b.fetch(dev_norm), norm, {true_norm});
            if (!with_master) continue;
            // With no BF16 weights to write, the rest is the same.
            b.device().adamw({{}, lone_master, lone_m, lone_v, copy(g), copy(scalars), lone_norm, options});
            CHECK(same_bits(b.fetch(lone_master), b.fetch(dev_master)));
            CHECK(same_bits(b.fetch(lone_m), b.fetch(dev_m)));
            CHECK(same_bits(b.fetch(lone_v), b.fetch(dev_v)));
          }
}

PRECBENCH_OP_TEST(overflow_on, "adamw leaves a weight whose second moment overflows, as the CPU does") {
  b.start();
  HostMemory& host = b.host();
  constexpr std::int64_t kFew = 8;
  const Tensor w = host.random(DType::f32, kFew, 1, 0.1f), g = host.random(DType::f32, kFew, 1, 0.1f);
  const Tensor m = host.tensor(DType::f32, kFew, 1), v = host.tensor(DType::f32, kFew, 1);
  std::fill_n(m.as<float>(), kFew, 0.0f), std::fill_n(v.as<float>(), kFew, 0.0f);
  v.as<float>()[3] = std::numeric_limits<float>::infinity();
  const Tensor norm = host.tensor(DType::f32, 1, 1), scalars = host.tensor(DType::i32, 1, 4);
  norm.as<float>()[0] = 0;
  const StepScalars step{.lr = 0.01f, .bias_correction1 = 0.3f, .bias_correction2 = 0.1f, .seed = 5};
  std::memcpy(scalars.data, &step, sizeof step);
  const Tensor dev_w = b.put(w);
  const float before = w.as<float>()[3];
  const UpdateOptions options{.weight_decay = 0};
  b.device().adamw({{}, dev_w, b.put(m), b.put(v), b.put(g), b.put(scalars), b.put(norm), options});
  b.cpu().adamw({{}, w, m, v, g, scalars, norm, options});
  CHECK(w.as<float>()[3] == before);
  CHECK(b.fetch(dev_w).as<float>()[3] == before);
}

PRECBENCH_OP_TEST(stochastic_on, "adamw rounds stochastically by the element's place in the model") {
  constexpr std::int64_t kMany = 20000;
  b.start();
  HostMemory& host = b.host();
  const Tensor w = host.random(DType::bf16, kMany, 1, 1.0f);
  const Tensor m = host.tensor(DType::f32, kMany, 1), v = host.tensor(DType::f32, kMany, 1);
  const Tensor g = host.tensor(DType::f32, kMany, 1), norm = host.tensor(DType::f32, 1, 1);
  for (const Tensor& t : {m, v, g, norm}) b.cpu().fill({t, 1.0f});
  // An update of w * 2^-10 alone: exact in FP32 and below BF16's last place. Without stochastic rounding
  // nothing would change.
  const StepScalars step{.lr = 0x1p-10f, .seed = 11};
  const Tensor scalars = host.tensor(DType::i32, 1, 4);
  std::memcpy(scalars.data, &step, sizeof step);
  b.cpu().zero({m});
  b.cpu().zero({g});
  constexpr std::int64_t kFar = (std::int64_t{1} << 34) + 3;
  const Tensor before = host.converted(w, DType::bf16);
  Tensor other;  // rounded by another index
  for (const ElementMap& index : {ElementMap(kFar), ElementMap(kFar, 100, 300).from(7)}) {
    const UpdateOptions options{
        .weight_decay = 1.0f, .max_norm = 0, .stochastic_rounding = true, .index = index};
    const Tensor weights = host.converted(w, DType::bf16), dev_w = b.put(w);
    b.device().adamw({dev_w, {}, b.put(m), b.put(v), b.put(g), b.put(scalars), b.put(norm), options});
    b.cpu().adamw({weights, {}, m, v, g, scalars, norm, options});
    CHECK(same_bits(b.fetch(dev_w), weights));
    CHECK(!same_bits(weights, before));
    CHECK(!same_bits(weights, other));
    other = weights;
  }
}
