// See mxfp4_experts.h.
#include "bench/step/mxfp4_experts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/errors.h"
#include "kernels/numerics/formats.h"

namespace precbench {
namespace {

constexpr std::int64_t kMxfp4Block = 32, kMxfp4BlockBytes = kMxfp4Block / 2;

const StoredTensor& checked(const SafetensorsFile& file, const std::string& path, const std::string& name,
                            const std::vector<std::int64_t>& shape) {
  const StoredTensor& stored = file.at(name);
  if (stored.dtype != "U8")
    throw InvalidInput(fmt::format("{}: {} is {}, expected U8", path, name, stored.dtype));
  if (stored.shape != shape)
    throw InvalidInput(fmt::format("{}: {} has shape [{}], expected [{}]", path, name,
                                   fmt::join(stored.shape, ", "), fmt::join(shape, ", ")));
  return stored;
}

}  // namespace

std::optional<Mxfp4Experts> find_mxfp4_experts(const SafetensorsFile& file, const std::string& path,
                                               const std::string& name, const StoredPart& part) {
  if (part.shape.size() != 3 || !file.find(name + "_blocks")) return std::nullopt;
  const std::int64_t experts = part.shape[0], in = part.shape[1], out = part.shape[2];
  if (in % kMxfp4Block != 0)
    throw InvalidInput(fmt::format("{}: {}_blocks: rows of {} values are no whole blocks of {}", path, name,
                                   in, kMxfp4Block));
  return Mxfp4Experts{
      &checked(file, path, name + "_blocks", {experts, out, in / kMxfp4Block, kMxfp4BlockBytes}),
      &checked(file, path, name + "_scales", {experts, out, in / kMxfp4Block})};
}

void read_mxfp4(const Mxfp4Experts& experts, const StoredPart& part, const Parameter& p, float* values) {
  const std::int64_t out = part.shape[2], blocks = p.cols / kMxfp4Block, expert = part.first / part.size;
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const std::int64_t first = (expert * out + part.offset + row * part.row_stride) * blocks;
    const std::byte* codes = experts.blocks->data + first * kMxfp4BlockBytes;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const float scale = ue8m0_decode(static_cast<std::uint8_t>(experts.scales->data[first + block]));
      for (std::int64_t i = 0; i < kMxfp4BlockBytes; ++i) {
        const auto pair = static_cast<std::uint8_t>(codes[block * kMxfp4BlockBytes + i]);
        float* to = values + row * p.cols + block * kMxfp4Block + 2 * i;
        to[0] = e2m1_decode(pair & 15u) * scale;
        to[1] = e2m1_decode(static_cast<std::uint8_t>(pair >> 4)) * scale;
      }
    }
  }
}

}  // namespace precbench
