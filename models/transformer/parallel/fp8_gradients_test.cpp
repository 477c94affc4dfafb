// FP8 gradients after a step on replicas and shards, with accumulation, against a host reference.
// kernels/device/scaled_values_test.cpp compares casts and sums with another implementation.
#include "models/transformer/parallel/fp8_gradients.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "kernels/comm/comm_testing.h"
#include "kernels/device/op_testing.h"
#include "kernels/numerics/state_formats.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

ModelConfig awkward() {
  ModelConfig c;
  c.layers = 2, c.width = 10, c.ffn = 13, c.heads = 3, c.kv_heads = 1, c.head_dim = 6, c.vocab = 101;
  c.qk_norm = true;
  return c;
}

/// Returns the gradient that backward leaves on a rank; its magnitude differs between parameters and ranks.
std::vector<float> gradient_of(int unit, std::size_t parameter, int rank, int micro, std::int64_t size) {
  const int stream = ((unit * 16 + static_cast<int>(parameter)) * 8 + rank) * 4 + micro;
  return rounded(normal(static_cast<std::uint64_t>(stream), size, std::ldexp(1e-3f, stream % 13 - rank)));
}

float next_scale(const std::vector<std::vector<float>>& values) {
  float amax = 0;
  for (const auto& of_rank : values)
    for (const float x : of_rank) amax = std::max(amax, std::fabs(x));
  return amax > 0 ? std::exp2(std::floor(std::log2(448.0f / amax))) : 1.0f;
}

/// Returns the nearest e4m3 value, ties to even, saturating at 448.
float nearest_e4m3(double x) {
  if (x == 0) return static_cast<float>(x);
  const double step = std::exp2(std::max(-9, std::ilogb(x) - 3));  // three mantissa bits, down to 2^-9
  return static_cast<float>(std::clamp(std::nearbyint(x / step) * step, -448.0, 448.0));
}

/// Rounds values to e4m3 and back.
std::vector<float> through(std::vector<float> values, float scale) {
  for (float& x : values) x = e4m3_decode(e4m3_encode(x * scale)) / scale;
  return values;
}

std::vector<float> plus(std::vector<float> a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// Returns the sum in rank order of the ranks' values, cast with one scale.
std::vector<float> sum_of(const std::vector<std::vector<float>>& values) {
  const float scale = next_scale(values);
  std::vector<float> sum = through(values[0], scale);
  for (std::size_t r = 1; r < values.size(); ++r) sum = plus(sum, through(values[r], scale));
  return sum;
}

/// Returns the sum as MS-AMP computes it: the scale is divided by sqrt(ranks), rounded down to a power of
/// two, and every sum is rounded to e4m3.
std::vector<float> rounded_sum_of(const std::vector<std::vector<float>>& values) {
  const auto ranks = static_cast<double>(values.size());
  const double scale = next_scale(values) * std::exp2(std::floor(-std::log2(ranks) / 2));
  std::vector<float> sum(values[0].size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    double total = nearest_e4m3(values[0][i] * scale);
    for (std::size_t r = 1; r < values.size(); ++r)
      total = nearest_e4m3(total + nearest_e4m3(values[r][i] * scale));
    sum[i] = static_cast<float>(total / scale);
  }
  return sum;
}

/// The kept gradient of a parameter.
struct Kept {
  std::vector<float> values;
  float scale = 1;
};

Kept kept_of(const std::vector<float>& values) {
  const float scale = next_scale({values});
  return {through(values, scale), scale};
}

/// Returns the expected gradient after a step. Replicas accumulate their own micro-steps and sum at the end;
/// shards sum over ranks and then accumulate.
Kept expected(int unit, std::size_t parameter, int ranks, int micros, bool sharded, bool round,
              std::int64_t size) {
  const auto over_ranks = [round](const std::vector<std::vector<float>>& values) {
    return round ? rounded_sum_of(values) : sum_of(values);
  };
  std::vector<Kept> own(ranks);
  Kept whole;
  for (int micro = 0; micro < micros; ++micro) {
    std::vector<std::vector<float>> values(ranks);
    for (int r = 0; r < ranks; ++r) values[r] = gradient_of(unit, parameter, r, micro, size);
    if (sharded) {
      const std::vector<float> sum = over_ranks(values);
      whole = kept_of(micro > 0 ? plus(sum, whole.values) : sum);
      continue;
    }
    for (int r = 0; r < ranks; ++r) {
      if (micro > 0) values[r] = plus(values[r], own[r].values);
      own[r] = kept_of(values[r]);
    }
    if (micro == micros - 1) whole = ranks == 1 ? own[0] : kept_of(over_ranks(values));
  }
  return whole;
}

/// Runs the ranks and compares every part of every unit with the expected gradient.
void check_ranks(int ranks, bool sharded, int micros, bool round) {
  const ModelConfig config = awkward();
  std::mutex mutex;
  on_cpu_ranks(ranks, [&](Device& device, Comm& comm) {
    std::vector<std::byte> memory(1 << 20, std::byte{0xFF});
    Arena arena(memory.data(), 1 << 20);
    const Layout layout(config, sharded ? ranks : 1);
    Fp8Gradients gradients(device, ranks > 1 ? &comm : nullptr, arena, config, layout, round);
    const Tensor kept = arena.push(Segment::gradients, DType::e4m3, 1, layout.local_size());
    const auto codes = [&](int u) { return kept.elements(layout.shard_offset(u), layout.shard_size(u)); };
    gradients.begin_step();
    for (int micro = 0; micro < micros; ++micro)
      for (int u = 0; u < layout.unit_count(); ++u) {
        const std::vector<Parameter>& parameters = layout.units()[u].parameters;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const std::vector<float> values = gradient_of(u, i, comm.rank(), micro, parameters[i].size());
          for (std::int64_t e = 0; e < parameters[i].size(); ++e)
            gradients.staging(u).as<std::uint16_t>()[parameters[i].offset + e] = bf16_encode(values[e]);
        }
        gradients.reduce(u, codes(u), micro == 0, micro == micros - 1);
      }
    const std::lock_guard lock(mutex);  // Catch2's assertions are not thread-safe
    for (int u = 0; u < layout.unit_count(); ++u) {
      const std::vector<Piece> pieces = layout.pieces(u, sharded ? comm.rank() : 0);
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const Kept want = expected(u, i, ranks, micros, sharded, round, pieces[i].parameter->size());
        const float scale = *gradients.scale(u, i).as<float>();
        CHECK(scale == want.scale);
        std::int64_t wrong = 0;
        for (std::int64_t e = 0; e < pieces[i].count; ++e)
          wrong += e4m3_decode(codes(u).as<std::uint8_t>()[pieces[i].offset + e]) / scale !=
                   want.values[pieces[i].first + e];
        INFO(pieces[i].parameter->name << " on rank " << comm.rank());
        CHECK(wrong == 0);
      }
    }
  });
}

}  // namespace

TEST_CASE("Fp8Gradients: match the host reference on one rank and on replicas and shards",
          "[fp8_gradients]") {
  for (const bool round : {false, true})
    for (const int micros : {1, 3}) {
      INFO(micros << " micro-steps" << (round ? ", sums in e4m3" : ""));
      check_ranks(1, false, micros, round);
      for (const int ranks : {2, 3, 4}) {
        INFO(ranks << " ranks");
        check_ranks(ranks, false, micros, round);
        check_ranks(ranks, true, micros, round);
      }
    }
}

TEST_CASE("Fp8Gradients host reference: e4m3 sums differ from FP32 sums and their final cast is exact",
          "[fp8_gradients]") {
  for (const int ranks : {2, 3, 4, 8}) {
    INFO(ranks << " ranks");
    std::int64_t different = 0, lost = 0;
    for (int parameter = 0; parameter < 4; ++parameter) {
      std::vector<std::vector<float>> values(ranks);
      for (int r = 0; r < ranks; ++r) values[r] = gradient_of(1, parameter, r, 0, 500);
      const std::vector<float> plain = sum_of(values), rounded = rounded_sum_of(values),
                               kept = kept_of(rounded).values;
      for (std::size_t i = 0; i < plain.size(); ++i)
        different += plain[i] != rounded[i], lost += kept[i] != rounded[i];
    }
    CHECK(different > 0);
    CHECK(lost == 0);
  }
}

TEST_CASE("Fp8Gradients: replicas send a quarter of the bytes of FP32 gradients", "[fp8_gradients]") {
  const ModelConfig config = awkward();
  on_cpu_ranks(4, [&](Device& device, Comm& comm) {
    std::vector<std::byte> memory(1 << 20);
    Arena arena(memory.data(), 1 << 20);
    const Layout layout(config, 1);
    Fp8Gradients gradients(device, &comm, arena, config, layout, false);
    const int unit = layout.block_unit(0);
    const std::int64_t size = layout.shard_size(unit);
    const Tensor codes = arena.push(Segment::gradients, DType::e4m3, 1, size);
    const Tensor plain = arena.push(Segment::gradients, DType::f32, 1, size);
    device.zero({gradients.staging(unit)});
    gradients.begin_step();
    const auto sent = [&](const auto& body) {
      comm.reset_counts();
      body();
      double bytes = 0;
      for (const CollectiveCount& count : comm.counts()) bytes += count.wire_bytes;
      return bytes;
    };
    const double narrow = sent([&] { gradients.reduce(unit, codes, true, true); });
    const double wide = sent([&] { comm.all_reduce(plain); });
    const double parts =
        static_cast<double>(Layout(config, 4).shard_size(unit)) * 4 / static_cast<double>(size);
    const double amaxes =
        2 * 2 * 0.75 * sizeof(float) * static_cast<double>(layout.units()[unit].parameters.size());
    if (comm.rank() == 0) {
      CHECK(narrow >= wide / 4);
      CHECK(narrow <= wide / 4 * parts + amaxes + 8);
    }
  });
}
