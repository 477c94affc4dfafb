// AdamW on the CPU device against the formulas in FP64, and stochastic rounding against its expectation.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr StepScalars kScalars{
    .lr = 3e-3f, .bias_correction1 = 0.271f, .bias_correction2 = 0.142625f, .seed = 7};

struct State {
  Owned weights, master, m, v, gradient;
};

/// Chunks of 4096 are what the device takes at a time: this is one, and a part of a second.
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

/// Returns norm_squared as the op leaves it.
float step(Device& device, const State& s, const StepScalars& scalars, float norm,
           const AdamwOptions& options) {
  Owned words(DType::f32, 1, 4);
  std::memcpy(words.tensor().data, &scalars, sizeof scalars);
  const Owned squared(DType::f32, 1, 1, {norm * norm});
  device.adamw(s.weights, s.master, s.m, s.v, s.gradient, words, squared, options);
  return squared.floats()[0];
}

struct Reference {
  std::vector<double> w, m, v;
};

/// Loshchilov & Hutter 2019, Algorithm 2, with PyTorch's clipping. Constants are those of the options: a
/// float 0.9 is not 0.9.
Reference adamw(const std::vector<double>& w, const State& s, double norm, const AdamwOptions& o) {
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

/// w - before, the step itself: an error in it would hide behind the weight's size.
std::vector<double> difference(const std::vector<double>& after, const std::vector<double>& before) {
  std::vector<double> d(after);
  for (std::size_t i = 0; i < d.size(); ++i) d[i] -= before[i];
  return d;
}

}  // namespace

TEST_CASE("adamw is the formula, clipped or not, decayed or not", "[cpu][adamw]") {
  const auto device = make_cpu_device(2);
  for (float norm : {0.25f, 4.0f})
    for (float max_norm : {0.0f, 1.0f})
      for (float weight_decay : {0.0f, 0.1f})
        for (DType gradients : {DType::f32, DType::bf16}) {
          INFO("norm " << norm << " max " << max_norm << " decay " << weight_decay);
          const AdamwOptions options{.weight_decay = weight_decay, .max_norm = max_norm};
          const State s = state(true, DType::f32, gradients);
          const std::vector<double> before = s.master.doubles();
          const Reference want = adamw(before, s, norm, options);
          step(*device, s, kScalars, norm, options);
          CHECK(relative_error(s.m.floats(), want.m) < kFp32Error);
          CHECK(relative_error(s.v.floats(), want.v) < kFp32Error);
          // The master rounds to its own size, which is some 10 times the step's.
          CHECK(relative_error(difference(s.master.doubles(), before), difference(want.w, before)) <
                10 * kFp32Error);
          CHECK(s.weights.floats() == rounded(s.master.floats()));
        }
}

TEST_CASE("without clipping the squares of the gradient are added to the norm, else it stays",
          "[cpu][adamw]") {
  const auto device = make_cpu_device(2);
  for (DType gradients : {DType::f32, DType::bf16}) {
    const State s = state(true, DType::f32, gradients);
    double squares = 0;
    for (double g : s.gradient.doubles()) squares += g * g;
    // Sixteen lanes of at most 256 additions, 4 to join them, one to round and one to add.
    constexpr double kBound = (256 + 4 + 1 + 1) * 0x1p-24;
    CHECK(std::fabs(step(*device, s, kScalars, 2.0f, {.max_norm = 0}) - (4 + squares)) <=
          kBound * (4 + squares));
    CHECK(step(*device, s, kScalars, 2.0f, {.max_norm = 1}) == 4.0f);
  }
}

TEST_CASE("BF16 moments and weights are the FP32 step rounded once", "[cpu][adamw]") {
  const auto device = make_cpu_device(2);
  State wide = state(true, DType::f32, DType::f32), narrow = state(true, DType::bf16, DType::bf16);
  State bare = state(false, DType::f32, DType::f32), own = state(true, DType::f32, DType::f32);
  own.master = {DType::f32, 1, kSize, own.weights.floats()};  // what the weights without a master start from
  for (State* s : {&wide, &narrow, &bare, &own}) step(*device, *s, kScalars, 2.0f, {});
  CHECK(narrow.m.floats() == rounded(wide.m.floats()));
  CHECK(narrow.v.floats() == rounded(wide.v.floats()));
  CHECK(narrow.master.bytes() == wide.master.bytes());
  CHECK(bare.weights.bytes() == own.weights.bytes());
}

TEST_CASE("stochastic rounding goes to a neighbour, right on average", "[cpu][adamw]") {
  const auto device = make_cpu_device(1);
  constexpr int kSeeds = 256;
  State start = state(true, DType::f32, DType::f32);
  start.master = {DType::f32, 1, kSize, start.weights.floats()};
  const State before = start;
  step(*device, start, kScalars, 2.0f, {});
  const std::vector<float> target = start.master.floats();

  std::vector<double> mean(kSize);
  std::int64_t elsewhere = 0;
  for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
    State s = before;
    s.master = {};
    StepScalars scalars = kScalars;
    scalars.seed = seed;
    step(*device, s, scalars, 2.0f, {.stochastic_rounding = true});
    const std::vector<float> got = s.weights.floats();
    double deviation = 0, variance = 0;  // of this seed's sum over elements, in units of the gap
    for (std::int64_t i = 0; i < kSize; ++i) {
      const float down = bf16_decode(static_cast<std::uint16_t>(float_to_bits(target[i]) >> 16));
      const float up = bf16_decode(static_cast<std::uint16_t>((float_to_bits(target[i]) >> 16) + 1));
      elsewhere += got[i] != down && got[i] != up;
      mean[i] += static_cast<double>(got[i]) / kSeeds;
      const double fraction = (static_cast<double>(target[i]) - down) / (static_cast<double>(up) - down);
      deviation += (got[i] == up) - fraction;
      variance += fraction * (1 - fraction);
    }
    // A normal variate beyond 5 deviations has a chance of 6e-7; the seeds are fixed, so this cannot flicker.
    REQUIRE(std::fabs(deviation) < 5 * std::sqrt(variance));
  }
  CHECK(elsewhere == 0);
  // Per element, over seeds: the sum of squared normalised deviations is chi-squared.
  double chi_squared = 0, elements = 0;
  for (std::int64_t i = 0; i < kSize; ++i) {
    const double down = bf16_decode(static_cast<std::uint16_t>(float_to_bits(target[i]) >> 16));
    const double gap = bf16_decode(static_cast<std::uint16_t>((float_to_bits(target[i]) >> 16) + 1)) - down;
    const double fraction = (target[i] - down) / gap;
    if (fraction < 0.05 || fraction > 0.95) continue;  // where 256 draws are far from normal
    const double z = (mean[i] - target[i]) / gap / std::sqrt(fraction * (1 - fraction) / kSeeds);
    chi_squared += z * z;
    ++elements;
  }
  CHECK(elements > 0.8 * kSize);
  CHECK(std::fabs(chi_squared - elements) < 5 * std::sqrt(2 * elements));
}

TEST_CASE("stochastic rounding depends on an element's place in the model, not on the split",
          "[cpu][adamw]") {
  const auto device = make_cpu_device(2);
  const AdamwOptions options{.stochastic_rounding = true, .first_index = 1000};
  const State whole = state(false, DType::bf16, DType::bf16), parts = whole, elsewhere = whole;
  step(*device, whole, kScalars, 2.0f, options);
  constexpr std::int64_t kCut = 123;
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, kCut}, {kCut, kSize - kCut}}) {
    Owned words(DType::f32, 1, 4);
    std::memcpy(words.tensor().data, &kScalars, sizeof kScalars);
    AdamwOptions part = options;
    part.first_index += first;
    const auto cut = [&, first = first, count = count](const Owned& t) {
      return t.tensor().reshape(kSize, 1).slice_rows(first, count);
    };
    device->adamw(cut(parts.weights), {}, cut(parts.m), cut(parts.v), cut(parts.gradient), words,
                  Owned(DType::f32, 1, 1, {4.0f}), part);
  }
  CHECK(parts.weights.bytes() == whole.weights.bytes());
  CHECK(parts.m.bytes() == whole.m.bytes());
  step(*device, elsewhere, kScalars, 2.0f, {.stochastic_rounding = true, .first_index = 1001});
  CHECK(elsewhere.weights.bytes() != whole.weights.bytes());
}

TEST_CASE("a step of nothing changes no weight, also under stochastic rounding", "[cpu][adamw]") {
  const auto device = make_cpu_device(1);
  const State s = state(false, DType::f32, DType::f32), before = s;
  StepScalars scalars = kScalars;
  scalars.lr = 0;
  step(*device, s, scalars, 2.0f, {.stochastic_rounding = true});
  CHECK(s.weights.bytes() == before.weights.bytes());
}
