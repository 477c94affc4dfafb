// AdamW with scaled moments: 1,000 steps against FP64, with a control that must fail; the stored bits of a
// step; and any device against the CPU device.
#include <cstring>

#include "kernels/device/compare_testing.h"
#include "kernels/device/scaled_adamw_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kCount = 4096 + 128 + 40;  // two of the CPU's chunks, and a partial group
/// Returns element i's gradient at a step: a magnitude per element from 2^-12 to 1, times a varying signed
/// factor.
float gradient_of(std::int64_t i, int step) {
  return std::exp2(-12.0f * static_cast<float>(i % 97) / 96.0f) *
         (0.3f + irwin_hall_normal(static_cast<std::uint64_t>(step) + 1, static_cast<std::uint64_t>(i)));
}

/// Returns the distance of the weights from FP64's after 1,000 steps, relative to the distance moved.
double error_after_1000_steps(StateFormat m_format, StateFormat v_format,
                              StateFormat w_format = StateFormat::fp32) {
  HostMemory host;
  const auto device = make_cpu_device(2);
  const Stored m = stored(host, m_format, kCount), v = stored(host, v_format, kCount);
  const Stored w_stored = stored(host, w_format, kCount);
  const Tensor master = w_stored.codes, gradient = host.tensor(DType::f32, 1, kCount);
  const Tensor scalars = host.tensor(DType::i32, 1, 4), norm = host.tensor(DType::f32, 1, 1);
  std::vector<double> w(kCount), mean(kCount), square(kCount);
  const double beta1 = kOptions.beta1, beta2 = kOptions.beta2;
  for (int t = 1; t <= 1000; ++t) {
    const StepScalars s{.lr = 1e-3f,
                        .bias_correction1 = static_cast<float>(1 - std::pow(beta1, t)),
                        .bias_correction2 = static_cast<float>(1 - std::pow(beta2, t))};
    std::memcpy(scalars.data, &s, sizeof s);
    for (std::int64_t i = 0; i < kCount; ++i) {
      const float g = gradient.as<float>()[i] = gradient_of(i, t);
      mean[i] = beta1 * mean[i] + (1 - beta1) * g;
      square[i] = beta2 * square[i] + (1 - beta2) * g * g;
      const double update = mean[i] / (1 - std::pow(beta1, t)) /
                            (std::sqrt(square[i] / (1 - std::pow(beta2, t))) + kOptions.eps);
      w[i] -= 1e-3f * (update + kOptions.weight_decay * w[i]);
    }
    *norm.as<float>() = 0;
    step(*device, adamw_of(w_stored, m, v, gradient, scalars, norm));
  }
  std::vector<float> weights(kCount);
  for (std::int64_t i = 0; i < kCount; ++i)
    weights[i] = w_format == StateFormat::fp32
                     ? master.as<float>()[i]
                     : state_decode(master.dtype, master.data, i) / *w_stored.scale.scale.as<float>();
  return relative_error(weights, w);
}

}  // namespace

TEST_CASE("scaled adamw: 1000 steps with narrow moments end near FP64 except for a per-tensor e4m3 v",
          "[cpu][adamw][state_formats]") {
  const auto error = [](StateFormat m, StateFormat v, StateFormat w = StateFormat::fp32) {
    const double e = error_after_1000_steps(m, v, w);
    UNSCOPED_INFO(name_of(m) << " and " << name_of(v) << ", weights " << name_of(w) << ": " << e);
    return e;
  };
  // Measured: 5e-7; 8e-4, 1e-4, 0.011, 0.018, and 22 for the control, which diverges completely.
  CHECK(error(StateFormat::fp32, StateFormat::fp32) < 2e-6);
  const double bf16 = error(StateFormat::bf16, StateFormat::bf16);
  const double ms_amp = error(StateFormat::e4m3, StateFormat::fp16);
  const double fp16 = error(StateFormat::fp16, StateFormat::fp16);
  const double coat = error(StateFormat::coat, StateFormat::coat);
  const double control = error(StateFormat::fp32, StateFormat::e4m3);
  CHECK(bf16 < 2e-3);
  CHECK(fp16 < 3e-4);
  CHECK(ms_amp < 0.03);
  CHECK(coat < 0.04);
  CHECK(control > 1);
  // For weights that grow to 1, updates of 1e-3 lost to FP16's 11 bits average out.
  CHECK(error(StateFormat::fp32, StateFormat::fp32, StateFormat::fp16) < 0.01);
  CHECK(error(StateFormat::e4m3, StateFormat::fp16, StateFormat::fp16) < 0.03);
}

PRECBENCH_OP_TEST(scaled_adamw_weights_on, "adamw with an FP16 master and an e4m3 gradient") {
  for (const bool narrow_moments : {false, true})
    for (const bool narrow_gradient : {false, true})
      for (const float max_norm : {0.0f, 1.0f}) {
        INFO("moments " << narrow_moments << ", gradient " << narrow_gradient << ", max norm " << max_norm);
        b.start();
        HostMemory& host = b.host();
        const Stored m = stored(host, narrow_moments ? StateFormat::e4m3 : StateFormat::fp32, kCount);
        const Stored v = stored(host, narrow_moments ? StateFormat::fp16 : StateFormat::fp32, kCount);
        const Stored w = stored(host, StateFormat::fp16, kCount);
        const Stored g = stored(host, StateFormat::e4m3, kCount);
        const Tensor first = host.random(DType::f32, 1, kCount, 0.02f);
        const Tensor scalars = host.tensor(DType::i32, 1, 4), norm = host.tensor(DType::f32, 1, 1);
        const Tensor gradient = host.tensor(DType::f32, 1, kCount);
        const StepScalars s{.lr = 0.001f, .bias_correction1 = 0.3f, .bias_correction2 = 0.1f, .seed = 5};
        std::memcpy(scalars.data, &s, sizeof s);
        const auto encode = [&](const Stored& to, const Tensor& values) {
          for (const bool measure : {true, false})
            b.cpu().encode({.codes = to.codes,
                            .scale = to.scale,
                            .src = values,
                            .accumulate = false,
                            .measure = measure});
          b.cpu().commit_scale({to.scale.scale, to.scale.amax, state_max(to.codes.dtype)});
        };
        encode(w, first);
        const auto on_device = [&](const Stored& x) {
          const auto put = [&](const Tensor& t) { return t.empty() ? Tensor{} : b.put(t); };
          return Stored{put(x.codes), {put(x.scale.scale), put(x.scale.amax)}};
        };
        const Stored dev_m = on_device(m), dev_v = on_device(v), dev_w = on_device(w);
        const Tensor dev_norm = b.put(norm);
        UpdateOptions options = kOptions;
        options.max_norm = max_norm;
        const auto op = [&](const Stored& weights, const Stored& mean, const Stored& square,
                            const Tensor& grad, const Tensor& scale, const Tensor& step_scalars,
                            const Tensor& squares) {
          ops::Adamw one = adamw_of(weights, mean, square, grad, step_scalars, squares, options);
          one.gradient_scale = scale;
          return one;
        };
        for (int t = 1; t <= 2; ++t) {
          for (std::int64_t i = 0; i < kCount; ++i) gradient.as<float>()[i] = gradient_of(i, t);
          encode(g, gradient);
          *norm.as<float>() = 4;
          b.device().upload(dev_norm, norm.data);
          const Tensor& grad = narrow_gradient ? g.codes : gradient;
          const Tensor scale = narrow_gradient ? g.scale.scale : Tensor{};
          step(b.device(), op(dev_w, dev_m, dev_v, b.put(grad), scale.empty() ? scale : b.put(scale),
                              b.put(scalars), dev_norm));
          step(b.cpu(), op(w, m, v, grad, scale, scalars, norm));
        }
        CHECK(same_bits(b.fetch(dev_w.scale.scale), w.scale.scale));
        // An FMA may move a code to its neighbour.
        const Tensor codes = b.fetch(dev_w.codes);
        std::int64_t off = 0, far = 0;
        for (std::int64_t i = 0; i < kCount; ++i) {
          const int difference = codes.as<std::uint16_t>()[i] - w.codes.as<std::uint16_t>()[i];
          off += difference != 0;
          far += std::abs(difference) > 1;
        }
        CHECK(off <= kCount / 50);
        CHECK(far <= 2);
        CHECK(std::fabs(*b.fetch(dev_norm).as<float>() - *norm.as<float>()) <= 1e-5f * *norm.as<float>());
      }
}

PRECBENCH_OP_TEST(scaled_adamw_on, "adamw with moments in every pair of formats") {
  const auto format = [](int i) { return static_cast<StateFormat>(i); };
  for (int pair = 0; pair < kStateFormats * kStateFormats; ++pair)
    for (const bool with_master : {false, true})
      for (const float max_norm : {0.0f, 1.0f}) {
        const StateFormat m_format = format(pair / kStateFormats), v_format = format(pair % kStateFormats);
        if (!scaled(m_format) && !scaled(v_format)) continue;
        INFO("m " << name_of(m_format) << ", v " << name_of(v_format) << (with_master ? ", master" : "")
                  << ", max norm " << max_norm);
        b.start();
        HostMemory& host = b.host();
        Stored m = stored(host, m_format, kCount), v = stored(host, v_format, kCount);
        const Tensor w = host.random(DType::bf16, kCount, 1, 0.1f);
        const Tensor master = with_master ? host.converted(w, DType::f32) : Tensor{};
        const Tensor scalars = host.tensor(DType::i32, 1, 4), norm = host.tensor(DType::f32, 1, 1);
        const Tensor gradient = host.tensor(DType::f32, kCount, 1);
        const StepScalars s{.lr = 0.01f, .bias_correction1 = 0.3f, .bias_correction2 = 0.1f, .seed = 5};
        std::memcpy(scalars.data, &s, sizeof s);
        const auto put = [&](const Tensor& t) { return t.empty() ? Tensor{} : b.put(t); };
        const auto on_device = [&](const Stored& x) {
          return Stored{put(x.codes), {put(x.scale.scale), put(x.scale.amax)}};
        };
        const Stored dev_m = on_device(m), dev_v = on_device(v);
        const Tensor dev_w = put(w), dev_master = put(master), dev_norm = put(norm);
        UpdateOptions options = kOptions;
        options.max_norm = max_norm;
        // The second step reads the states stored by the first.
        for (int t = 1; t <= 2; ++t) {
          for (std::int64_t i = 0; i < kCount; ++i) gradient.as<float>()[i] = gradient_of(i, t);
          *norm.as<float>() = 4;
          b.device().upload(dev_norm, norm.data);
          step(b.device(), {dev_w, dev_master, dev_m.codes, dev_v.codes, put(gradient), put(scalars),
                            dev_norm, options, dev_m.scale, dev_v.scale});
          step(b.cpu(), {w, master, m.codes, v.codes, gradient, scalars, norm, options, m.scale, v.scale});
        }
        const auto close = [&](const Tensor& got, const Tensor& want) {
          return relative_error(HostMemory::values(b.fetch(got)), HostMemory::values(want));
        };
        const auto compare = [&](const char* what, StateFormat f, const Stored& got, const Stored& want) {
          INFO(what);
          if (tensor_scaled(f)) CHECK(same_bits(b.fetch(got.scale.scale), want.scale.scale));
          if (f == StateFormat::fp32) {
            CHECK(close(got.codes, want.codes) < 1e-6);
            return;
          }
          // The last bit of a power, or an FMA, may move a code to its neighbour.
          const Tensor codes = b.fetch(got.codes);
          const auto at = [](const Tensor& t, std::int64_t i) -> int {
            return bits_of(t.dtype) == 8 ? t.as<std::uint8_t>()[i] : t.as<std::uint16_t>()[i];
          };
          std::int64_t off = 0, far = 0;
          for (std::int64_t i = 0; i < kCount; ++i) {
            off += at(codes, i) != at(want.codes, i);
            far += std::abs(at(codes, i) - at(want.codes, i)) > 1;
          }
          CHECK(off <= kCount / 50);
          CHECK(far <= 2);  // cancellation between nearly equal terms leaves few digits
        };
        compare("m", m_format, dev_m, m);
        compare("v", v_format, dev_v, v);
        // Adjacent COAT codes differ by 6%, and so does one step of the weight.
        const bool coat = m_format == StateFormat::coat || v_format == StateFormat::coat;
        CHECK(close(dev_w, w) < (coat ? 1e-3 : 1e-4));
        if (with_master) CHECK(close(dev_master, master) < (coat ? 1e-3 : 2e-5));
        CHECK(close(dev_norm, norm) < 1e-6);
      }
}

PRECBENCH_OP_TEST(coat_nan_on, "adamw with NaN and infinity in COAT's groups") {
  HostMemory& host = b.host();
  const Stored m = stored(host, StateFormat::coat, kCount), v = stored(host, StateFormat::coat, kCount);
  const Tensor w = host.random(DType::f32, 1, kCount, 0.1f), gradient = host.tensor(DType::f32, 1, kCount);
  const Tensor scalars = host.tensor(DType::i32, 1, 4), norm = host.tensor(DType::f32, 1, 1);
  const StepScalars s{.lr = 0.01f, .bias_correction1 = 0.3f, .bias_correction2 = 0.1f};
  std::memcpy(scalars.data, &s, sizeof s);
  *norm.as<float>() = 0;
  // One NaN in group 0, all of group 1 NaN, an infinity in group 2, and group 3 all zero.
  constexpr std::int64_t kNan = 5, kInf = 2 * kCoatGroup + 17;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const std::int64_t group = i / kCoatGroup;
    gradient.as<float>()[i] = i == kNan || group == 1 ? NAN
                              : i == kInf             ? INFINITY
                              : group == 3            ? 0
                                                      : gradient_of(i, 1);
  }
  const auto on_device = [&](const Stored& x) { return Stored{b.put(x.codes), {b.put(x.scale.scale), {}}}; };
  const Stored dev_m = on_device(m), dev_v = on_device(v);
  const Tensor dev_w = b.put(w);
  step(b.device(), adamw_of({dev_w, {}}, dev_m, dev_v, b.put(gradient), b.put(scalars), b.put(norm)));
  step(b.cpu(), adamw_of({w, {}}, m, v, gradient, scalars, norm));
  for (const auto& [got, want] : {std::pair(dev_m, m), std::pair(dev_v, v)}) {
    const Tensor codes = b.fetch(got.codes), scales = b.fetch(got.scale.scale);
    std::int64_t wrong = 0, off = 0, far = 0;
    for (std::int64_t i = 0; i < kCount; ++i) {
      const std::int64_t group = i / kCoatGroup;
      const int code = codes.as<std::uint8_t>()[i], oracle = want.codes.as<std::uint8_t>()[i];
      // A NaN is kept and its neighbours keep their values; an infinity makes its whole group NaN.
      const bool lost = i == kNan || group == 1 || group == 2;
      wrong += ((code & 0x7F) == 0x7F) != lost;
      wrong += ((oracle & 0x7F) == 0x7F) != lost;
      wrong += group == 3 && code != 0;
      off += !lost && code != oracle;
      far += !lost && std::abs(code - oracle) > 1;
    }
    CHECK(wrong == 0);
    CHECK(off <= kCount / 50);
    CHECK(far <= 2);
    const auto scale = [](const Tensor& t, std::int64_t i) { return t.as<float>()[i]; };
    for (std::int64_t i = 0; i < scales.size(); ++i) {
      const float a = scale(scales, i), c = scale(want.scale.scale, i);
      CHECK((std::isnan(a) ? std::isnan(c) : a == c || std::fabs(a / c - 1) < 1e-5f));
    }
    CHECK(scale(scales, 0) != 1);  // the rest of group 0 still has its range
  }
  const Tensor weights = b.fetch(dev_w);
  for (const std::int64_t i : {kNan, kCoatGroup, 2 * kCoatGroup - 1, kInf})
    CHECK((std::isnan(weights.as<float>()[i]) && std::isnan(w.as<float>()[i])));
  for (const std::int64_t i : {kNan - 1, kNan + 1, kInf - 1, 3 * kCoatGroup})
    CHECK((std::isfinite(weights.as<float>()[i]) && std::isfinite(w.as<float>()[i])));
}

TEST_CASE("scaled adamw: the measuring pass changes only amaxes and parts measure what the whole does",
          "[cpu][adamw][state_formats]") {
  HostMemory host;
  const auto device = make_cpu_device(1);
  Stored m = stored(host, StateFormat::e4m3, kCount), v = stored(host, StateFormat::fp16, kCount);
  const Tensor w = host.random(DType::bf16, kCount, 1, 0.1f), before = host.converted(w, DType::bf16);
  const Tensor gradient = host.random(DType::f32, kCount, 1, 0.1f), norm = host.tensor(DType::f32, 1, 1);
  const Tensor scalars = host.tensor(DType::i32, 1, 4);
  const StepScalars s{};
  std::memcpy(scalars.data, &s, sizeof s);
  *norm.as<float>() = 1;
  const auto measure = [&](std::int64_t first, std::int64_t count) {
    const auto cut = [&](const Tensor& t) { return t.elements(first, count); };
    device->adamw({.weights = cut(w),
                   .master = {},
                   .m = cut(m.codes),
                   .v = cut(v.codes),
                   .gradient = cut(gradient),
                   .scalars = scalars,
                   .norm_squared = norm,
                   .options = {},
                   .m_scale = m.scale,
                   .v_scale = v.scale,
                   .measure = true});
  };
  measure(0, kCount);
  const float m_amax = *m.scale.amax.as<float>(), v_amax = *v.scale.amax.as<float>();
  CHECK((m_amax > 0 && v_amax > 0));
  CHECK(same_bits(w, before));
  CHECK(*m.scale.scale.as<float>() == 1);
  *m.scale.amax.as<float>() = *v.scale.amax.as<float>() = 0;
  measure(0, 1000);
  measure(1000, kCount - 1000);
  CHECK((*m.scale.amax.as<float>() == m_amax && *v.scale.amax.as<float>() == v_amax));
  device->commit_scale({m.scale.scale, m.scale.amax, kE4m3Max});
  CHECK(*m.scale.scale.as<float>() == state_scale(m_amax, kE4m3Max, 1));
  CHECK(*m.scale.amax.as<float>() == 0);
}
