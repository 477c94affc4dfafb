// See fp8_weights.h.
#include "bench/step/fp8_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/numerics/formats.h"
#include "models/checkpoint/safetensors_format.h"

namespace precbench {
namespace {

constexpr std::int64_t kBlock = 128;  // DeepSeek-V3's, rows and columns

std::int64_t blocks(std::int64_t size) { return (size + kBlock - 1) / kBlock; }

/// Returns the scales of a weight. Throws InvalidInput unless there is one tensor of them.
const StoredTensor& scales_of(const SafetensorsFile& file, const std::string& path,
                              const StoredTensor& stored) {
  // Experts of Transformers have all of a layer's in one tensor, without ".weight".
  const std::string inverse = stored.name + "_scale_inv", plain = stored.name + "_scale";
  const StoredTensor* first = file.find(inverse);
  const StoredTensor* second = file.find(plain);
  if (first && second)
    throw InvalidInput(fmt::format("{}: {} and {} are both there; an FP8 weight has one tensor of scales",
                                   path, visible(inverse), visible(plain)));
  if (!first && !second)
    throw InvalidInput(fmt::format(
        "{}: tensor '{}' is {}, and neither '{}' nor '{}' is there: without its scales it would be misread",
        path, visible(stored.name), stored.dtype, visible(inverse), visible(plain)));
  return first ? *first : *second;
}

float scale_at(const StoredTensor& scales, std::int64_t index) {
  const std::int64_t bytes = scales.bytes / scales.size();
  const std::byte* at = scales.data + index * bytes;
  if (bytes == 1) return ue8m0_decode(std::to_integer<std::uint8_t>(*at));
  if (bytes == 4) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return scales.dtype == "F16" ? half_to_float(bits)
                               : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace

std::optional<Fp8Weight> find_fp8_weight(const SafetensorsFile& file, const std::string& path,
                                         const StoredTensor& stored) {
  if (stored.dtype != "F8_E4M3" && stored.dtype != "F8_E5M2") return std::nullopt;
  const StoredTensor& scales = scales_of(file, path, stored);
  constexpr std::array kScaleTypes = {"F32", "BF16", "F16", "F8_E8M0"};
  if (std::find(kScaleTypes.begin(), kScaleTypes.end(), scales.dtype) == kScaleTypes.end())
    throw InvalidInput(fmt::format("{}: {} is {}; scales must be F32, BF16, F16 or F8_E8M0", path,
                                   visible(scales.name), scales.dtype));
  Fp8Weight weight{&stored, &scales, stored.size(), stored.size(), stored.size()};
  std::string forms = "one scale";
  using Shape = std::vector<std::int64_t>;
  const Shape& shape = scales.shape;
  const bool one = shape.empty() || shape == Shape{1} || shape == Shape{1, 1};
  if (stored.shape.size() == 2) {
    const std::int64_t rows = stored.shape[0], cols = stored.shape[1];
    weight.cols = weight.cols_of_scale = cols;
    weight.rows_of_scale = rows;
    if (one) return weight;
    weight.rows_of_scale = 1;
    if (shape == Shape{rows} || shape == Shape{rows, 1}) return weight;
    weight.rows_of_scale = weight.cols_of_scale = kBlock;
    if (shape == Shape{blocks(rows), blocks(cols)}) return weight;
    forms = fmt::format("one scale, [{}, 1] for rows, or [{}, {}] for blocks of {}x{}", rows, blocks(rows),
                        blocks(cols), kBlock, kBlock);
  } else if (one) {
    return weight;
  }
  throw InvalidInput(fmt::format("{}: {} has shape [{}], expected {} of a weight of shape [{}]", path,
                                 visible(scales.name), fmt::join(shape, ", "), forms,
                                 fmt::join(stored.shape, ", ")));
}

void read_fp8(const Fp8Weight& weight, std::int64_t first, std::int64_t size, float* values) {
  const bool e4m3 = weight.codes->dtype == "F8_E4M3";
  const std::int64_t scales_in_row = (weight.cols + weight.cols_of_scale - 1) / weight.cols_of_scale;
  for (std::int64_t done = 0; done < size;) {
    const std::int64_t at = first + done, row = at / weight.cols, col = at % weight.cols;
    const std::int64_t block = col / weight.cols_of_scale;
    // Elements of this row under the same scale.
    const std::int64_t run =
        std::min({size - done, weight.cols - col, (block + 1) * weight.cols_of_scale - col});
    const float scale = scale_at(*weight.scales, row / weight.rows_of_scale * scales_in_row + block);
    for (std::int64_t i = 0; i < run; ++i) {
      const auto code = std::to_integer<std::uint8_t>(weight.codes->data[at + i]);
      values[done + i] = (e4m3 ? e4m3_decode(code) : e5m2_decode(code)) * scale;
    }
    done += run;
  }
}

bool is_activation_scale(const std::string& name) {
  constexpr std::array kEnds = {".input_scale", ".input_scale_ub", ".activation_scale", ".output_scale",
                                ".q_scale",     ".k_scale",        ".v_scale",          ".kv_scale"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](const char* end) { return name.ends_with(end); });
}

}  // namespace precbench
