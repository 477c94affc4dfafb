// Codes with a per-tensor scale: bit for bit against golden/scaled.txt, an independent implementation of
// casts, scales and the sum over ranks (tools/goldens/make_scaled_goldens.py), and any device against the CPU
// device.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"
#include "kernels/numerics/golden_testing.h"
#include "kernels/numerics/state_formats.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr DType kCodes[] = {DType::f16, DType::e4m3};

Tensor tensor_of(HostMemory& host, DType dtype, const GoldenWords& words) {
  const Tensor t = host.tensor(dtype, 1, static_cast<std::int64_t>(words.size()));
  for (std::size_t i = 0; i < words.size(); ++i)
    std::memcpy(t.as<std::byte>() + bytes_of(dtype, static_cast<std::int64_t>(i)), &words[i],
                bytes_of(dtype, 1));
  return t;
}

StateScale scale_of(HostMemory& host, float scale) {
  const StateScale s{.scale = host.tensor(DType::f32, 1, 1), .amax = host.tensor(DType::f32, 1, 1)};
  *s.scale.as<float>() = scale;
  *s.amax.as<float>() = 0;
  return s;
}

/// Runs both passes and commits the new scale.
void encode(Device& device, ops::Encode op) {
  op.measure = true;
  device.encode(op);
  op.measure = false;
  device.encode(op);
  device.commit_scale({op.scale.scale, op.scale.amax, state_max(op.codes.dtype) / op.headroom});
}

}  // namespace

TEST_CASE("encode: codes and scales equal the golden file's bit for bit", "[cpu][scaled]") {
  const auto sections = golden_sections(PRECBENCH_SOURCE_DIR "/kernels/device/golden/scaled.txt");
  const auto device = make_cpu_device(2);
  for (const DType dtype : kCodes)
    for (const char* kind : {"wide", "small", "large", "zero", "ties", "weights"}) {
      const std::string name = std::string(name_of(dtype)) + "." + kind;
      INFO(name);
      HostMemory host;
      const auto golden = [&](const char* part, DType as) {
        return tensor_of(host, as, sections.at(name + part));
      };
      const Tensor src = golden(".src", DType::f32), codes = host.tensor(dtype, 1, src.size());
      const Tensor back = host.tensor(DType::f32, 1, src.size());
      const StateScale scale = scale_of(host, 4);
      encode(*device, {.codes = codes, .scale = scale, .src = src});
      CHECK(same_bits(codes, golden(".codes", dtype)));
      CHECK(same_bits(scale.scale, golden(".scale", DType::f32)));
      device->decode({back, codes, scale.scale});
      CHECK(same_bits(back, golden(".decoded", DType::f32)));
      encode(*device, {.codes = codes, .scale = scale, .src = src, .accumulate = true});
      CHECK(same_bits(codes, golden(".added.codes", dtype)));
      CHECK(same_bits(scale.scale, golden(".added.scale", DType::f32)));
    }
}

TEST_CASE("sum_codes: a gradient cast and summed over ranks and cast again equals the golden file's",
          "[cpu][scaled]") {
  const auto sections = golden_sections(PRECBENCH_SOURCE_DIR "/kernels/device/golden/scaled.txt");
  const auto device = make_cpu_device(2);
  for (const int ranks : {2, 3, 8}) {
    INFO(ranks << " ranks");
    HostMemory host;
    const auto golden = [&](const char* part, DType as) {
      return tensor_of(host, as, sections.at("reduce." + std::to_string(ranks) + "." + part));
    };
    const Tensor all = golden("src", DType::bf16);
    const std::int64_t size = all.size() / ranks;
    const Tensor src = all.reshape(ranks, size), codes = host.tensor(DType::e4m3, ranks, size);
    const StateScale scale = scale_of(host, 1);
    for (const bool measure : {true, false})
      for (int r = 0; r < ranks; ++r)
        device->encode({.codes = codes.slice_rows(r, 1),
                        .scale = scale,
                        .src = src.slice_rows(r, 1),
                        .accumulate = false,
                        .measure = measure});
    device->commit_scale({scale.scale, scale.amax, kE4m3Max});
    CHECK(same_bits(scale.scale, golden("scale", DType::f32)));
    CHECK(same_bits(codes, golden("codes", DType::e4m3)));
    // In two parts, as if a rank's shard ended inside a parameter.
    const Tensor sum = host.tensor(DType::f32, 1, size);
    for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 77}, {77, size - 77}})
      device->sum_codes({sum.elements(first, count), codes, first, scale.scale});
    CHECK(same_bits(sum, golden("sum", DType::f32)));
    const Tensor sum_codes = host.tensor(DType::e4m3, 1, size);
    encode(*device, {.codes = sum_codes, .scale = scale, .src = sum});
    CHECK(same_bits(scale.scale, golden("sum_scale", DType::f32)));
    CHECK(same_bits(sum_codes, golden("sum_codes", DType::e4m3)));
  }
}

TEST_CASE("sum_codes: e4m3 sums rounded at every addition are the nearest values", "[cpu][scaled]") {
  const auto device = make_cpu_device(2);
  // All codes except NaN in pairs, plus a third that may change the rounding: value by value, without casts.
  std::vector<float> values;
  for (int code = 0; code < 256; ++code)
    if ((code & 0x7F) != 0x7F) values.push_back(e4m3_decode(static_cast<std::uint8_t>(code)));
  std::vector<float> magnitudes(values);
  std::sort(magnitudes.begin(), magnitudes.end());
  const auto nearest = [&](float x) {
    const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), x);
    if (above == magnitudes.end()) return magnitudes.back();
    if (above == magnitudes.begin() || *above == x) return *above;
    const float down = above[-1], up = *above;
    if (x - down != up - x) return x - down < up - x ? down : up;
    return e4m3_encode(down) % 2 == 0 ? down : up;  // codes of one sign are consecutive
  };
  for (const float scale : {1.0f, 0.25f}) {
    HostMemory host;
    const auto count = static_cast<std::int64_t>(values.size() * values.size());
    const Tensor codes = host.tensor(DType::e4m3, 3, count), sum = host.tensor(DType::f32, 1, count);
    const Tensor of_all = host.tensor(DType::f32, 1, 1);
    *of_all.as<float>() = scale;
    std::vector<float> want(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const float a = values[i % values.size()], b = values[i / values.size()],
                  c = values[i * 7 % values.size()];
      for (int row = 0; row < 3; ++row)
        codes.as<std::uint8_t>()[row * count + i] = e4m3_encode(row == 0 ? a : row == 1 ? b : c);
      want[i] = nearest(nearest(a + b) + c) / scale;
    }
    device->sum_codes({sum, codes, 0, of_all, true});
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < count; ++i) wrong += sum.as<float>()[i] != want[i];
    CHECK(wrong == 0);
  }
}

TEST_CASE("encode: headroom divides the scale by its value", "[cpu][scaled]") {
  const auto device = make_cpu_device(2);
  HostMemory host;
  const Tensor src = host.random(DType::f32, 1, 1000, 0.01f), codes = host.tensor(DType::e4m3, 2, 1000);
  const StateScale plain = scale_of(host, 1), smaller = scale_of(host, 1);
  encode(*device, {.codes = codes.slice_rows(0, 1), .scale = plain, .src = src});
  encode(*device, {.codes = codes.slice_rows(1, 1), .scale = smaller, .src = src, .headroom = 4});
  CHECK(*smaller.scale.as<float>() == *plain.scale.as<float>() / 4);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < 1000; ++i)
    wrong +=
        codes.as<std::uint8_t>()[1000 + i] != e4m3_encode(src.as<float>()[i] * *smaller.scale.as<float>());
  CHECK(wrong == 0);
}

PRECBENCH_OP_TEST(scaled_values_on, "encode, decode, sum_codes and the squares of codes") {
  for (const DType dtype : kCodes)
    for (const DType source : {DType::f32, DType::bf16})
      for (const std::int64_t size : {1, 7, 4096 + 40, 100000})
        for (const std::int64_t shift : {0, 3}) {
          INFO(name_of(dtype) << " of " << name_of(source) << ", " << size << " elements from " << shift);
          b.start();
          HostMemory& host = b.host();
          const Tensor src = host.random(source, 1, size, 0.01f);
          const Tensor buffer = host.tensor(dtype, 1, size + shift), codes = buffer.elements(shift, size);
          std::memset(buffer.data, 0, buffer.bytes());
          const StateScale scale = scale_of(host, 1);
          const Tensor dev_codes = b.put(buffer).elements(shift, size), dev_src = b.put(src);
          const StateScale dev_scale{b.put(scale.scale), b.put(scale.amax)};
          for (const auto& [accumulate, headroom] : {std::pair{true, 2.0f}, {false, 1.0f}, {true, 1.0f}}) {
            encode(
                b.cpu(),
                {.codes = codes, .scale = scale, .src = src, .accumulate = accumulate, .headroom = headroom});
            encode(b.device(), {.codes = dev_codes,
                                .scale = dev_scale,
                                .src = dev_src,
                                .accumulate = accumulate,
                                .headroom = headroom});
            CHECK(same_bits(b.fetch(dev_codes), codes));
            CHECK(same_bits(b.fetch(dev_scale.scale), scale.scale));
          }
          for (const DType to : {DType::f32, DType::bf16}) {
            const Tensor want = host.tensor(to, 1, size), got = b.output(to, 1, size);
            b.cpu().decode({want, codes, scale.scale});
            b.device().decode({got, dev_codes, dev_scale.scale});
            CHECK(same_bits(b.fetch(got), want));
          }
          const Tensor values = host.tensor(DType::f32, 1, size), got = b.output(DType::f32, 1, 1);
          b.cpu().decode({values, codes, scale.scale});
          double squares = 0;
          for (std::int64_t i = 0; i < size; ++i)
            squares += double{values.as<float>()[i]} * values.as<float>()[i];
          b.device().sum_of_squares({got, dev_codes, false, dev_scale.scale});
          // FP32's worst case, as in elementwise_test.cpp.
          CHECK(std::fabs(*b.fetch(got).as<float>() - squares) <= (1024 + 6) * 0x1p-24 * squares);
          if (size < 12) continue;
          // Rows of the same codes, a part of each.
          const std::int64_t cols = size / 3, first = 5, count = cols - 6;
          const Tensor sum = host.tensor(DType::f32, 1, count), dev_sum = b.output(DType::f32, 1, count);
          for (const bool round : {false, true}) {
            b.cpu().sum_codes({sum, codes.elements(0, 3 * cols).reshape(3, cols), first, scale.scale, round});
            b.device().sum_codes(
                {dev_sum, dev_codes.elements(0, 3 * cols).reshape(3, cols), first, dev_scale.scale, round});
            CHECK(same_bits(b.fetch(dev_sum), sum));
          }
          if (dtype != DType::f16) continue;
          // BF16 output may overwrite the codes that it is decoded from.
          const Tensor rounded = host.tensor(DType::bf16, 1, size);
          b.cpu().decode({rounded, codes, scale.scale});
          Tensor in_place = dev_codes;
          in_place.dtype = DType::bf16;
          b.device().decode({in_place, dev_codes, dev_scale.scale});
          CHECK(same_bits(b.fetch(in_place), rounded));
        }
}
