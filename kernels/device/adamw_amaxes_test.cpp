// AdamW's optional weight amaxes, per span and per equal part of a span. On each device they must match the
// amaxes of the weights that it wrote.
#include <algorithm>
#include <cstring>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

PRECBENCH_OP_TEST(span_parts_on, "adamw leaves the amaxes of the equal parts of a span") {
  // Parts of which a thread block handles one or two and parts of which it handles many, next to gaps and
  // undivided spans.
  struct Span {
    std::int64_t first, parts, size;
  };
  constexpr std::int64_t kMany = 3000001;
  constexpr Span kSpans[] = {{8, 40, 24}, {1000, 1, 9000}, {12000, 25, 80000}, {2100000, 800, 1000}};
  b.start();
  HostMemory& host = b.host();
  const Tensor w = host.random(DType::bf16, kMany, 1, 0.1f), m = host.random(DType::bf16, kMany, 1, 0.01f);
  const Tensor v = host.tensor(DType::bf16, kMany, 1), g = host.random(DType::bf16, kMany, 1, 0.1f);
  const Tensor norm = host.tensor(DType::f32, 1, 1), scalars = host.tensor(DType::i32, 1, 4);
  b.cpu().fill({v, 0.01f});
  norm.as<float>()[0] = 0;
  const StepScalars step{.lr = 0.01f, .bias_correction1 = 0.3f, .bias_correction2 = 0.1f, .seed = 5};
  std::memcpy(scalars.data, &step, sizeof step);
  std::int64_t parts = 0;
  for (const Span& span : kSpans) parts += span.parts;
  const Tensor amaxes = host.tensor(DType::f32, 1, parts);
  std::fill_n(amaxes.as<float>(), parts, 0.0f);
  const auto spans = [&](const Tensor& to) {
    std::vector<ops::WeightAmax> all;
    std::int64_t at = 0;
    for (const Span& span : kSpans) {
      all.push_back({span.first, span.first + span.parts * span.size, to.elements(at, span.parts)});
      at += span.parts;
    }
    return all;
  };
  const Tensor dev_w = b.put(w), dev_amaxes = b.put(amaxes);
  const UpdateOptions options{.max_norm = 0};
  b.device().adamw({.weights = dev_w,
                    .master = {},
                    .m = b.put(m),
                    .v = b.put(v),
                    .gradient = b.put(g),
                    .scalars = b.put(scalars),
                    .norm_squared = b.put(norm),
                    .options = options,
                    .amaxes = spans(dev_amaxes)});
  b.cpu().adamw({.weights = w,
                 .master = {},
                 .m = m,
                 .v = v,
                 .gradient = g,
                 .scalars = scalars,
                 .norm_squared = norm,
                 .options = options,
                 .amaxes = spans(amaxes)});
  const Tensor made = b.fetch(dev_w), left = b.fetch(dev_amaxes);
  const auto check = [&](const Tensor& weights, const Tensor& found) {
    std::int64_t part = 0, wrong = 0;
    for (const Span& span : kSpans)
      for (std::int64_t p = 0; p < span.parts; ++p, ++part) {
        float most = 0;
        for (std::int64_t i = 0; i < span.size; ++i)
          most = std::max(
              most, std::fabs(bf16_decode(weights.as<std::uint16_t>()[span.first + p * span.size + i])));
        wrong += found.as<float>()[part] != most;
      }
    CHECK(wrong == 0);
  };
  check(made, left);
  check(w, amaxes);
}

PRECBENCH_OP_TEST(weight_amaxes_on, "adamw leaves the amaxes of the weights that it writes") {
  // Gaps between and after the spans; spans that begin and end inside the range of one thread block.
  constexpr std::int64_t kMany = 100003, kFirst[] = {0, 2048, 6000, 99000},
                         kLast[] = {2048, 5992, 98000, 100000};
  for (const bool with_master : {false, true})
    for (const bool stochastic : {false, true}) {
      INFO((with_master ? "master" : "no master") << (stochastic ? ", stochastic" : ""));
      b.start();
      HostMemory& host = b.host();
      const Tensor w = host.random(DType::bf16, kMany, 1, 0.1f);
      for (const std::int64_t hole : {5995, 98500, 100001}) HostMemory::set(w, hole, 50.0f);
      HostMemory::set(w, 3000, std::numeric_limits<float>::quiet_NaN());
      const Tensor master = with_master ? host.converted(w, DType::f32) : Tensor{};
      const Tensor m = host.random(DType::bf16, kMany, 1, 0.01f), v = host.tensor(DType::bf16, kMany, 1);
      const Tensor g = host.random(DType::bf16, kMany, 1, 0.1f), norm = host.tensor(DType::f32, 1, 1);
      b.cpu().fill({v, 0.01f});
      norm.as<float>()[0] = 0;
      const StepScalars step{.lr = 0.01f, .bias_correction1 = 0.3f, .bias_correction2 = 0.1f, .seed = 5};
      const Tensor scalars = host.tensor(DType::i32, 1, 4), amaxes = host.tensor(DType::f32, 1, 4);
      std::memcpy(scalars.data, &step, sizeof step);
      std::fill_n(amaxes.as<float>(), 4, 0.0f);
      amaxes.as<float>()[3] = 7.0f;  // raised, not replaced
      const auto copy = [&](const Tensor& t) { return t.empty() ? Tensor{} : b.put(t); };
      const Tensor dev_w = copy(w), dev_amaxes = copy(amaxes);
      const UpdateOptions options{.max_norm = 0, .stochastic_rounding = stochastic, .index = 24};
      const auto spans = [&](const Tensor& to) {
        std::vector<ops::WeightAmax> all;
        for (int i = 0; i < 4; ++i) all.push_back({kFirst[i], kLast[i], to.elements(i, 1)});
        return all;
      };
      b.device().adamw({.weights = dev_w,
                        .master = copy(master),
                        .m = copy(m),
                        .v = copy(v),
                        .gradient = copy(g),
                        .scalars = copy(scalars),
                        .norm_squared = copy(norm),
                        .options = options,
                        .amaxes = spans(dev_amaxes)});
      b.cpu().adamw({.weights = w,
                     .master = master,
                     .m = m,
                     .v = v,
                     .gradient = g,
                     .scalars = scalars,
                     .norm_squared = norm,
                     .options = options,
                     .amaxes = spans(amaxes)});
      const auto largest = [](const Tensor& weights, std::int64_t first, std::int64_t last) {
        float most = 0;
        for (std::int64_t i = first; i < last; ++i)
          most = std::max(most, std::fabs(static_cast<float>(HostMemory::get(weights, i))));
        return most;
      };
      const Tensor made = b.fetch(dev_w), left = b.fetch(dev_amaxes);
      for (const int i : {0, 2}) {
        CHECK(left.as<float>()[i] == largest(made, kFirst[i], kLast[i]));
        CHECK(amaxes.as<float>()[i] == largest(w, kFirst[i], kLast[i]));
      }
      for (const Tensor& t : {left, amaxes}) {
        CHECK(std::isnan(t.as<float>()[1]));
        CHECK(t.as<float>()[3] == 7.0f);
      }
    }
}
