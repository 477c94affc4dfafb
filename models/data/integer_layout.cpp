// Compares the places of values within wider integers. See integer_layout.h.
#include "models/data/integer_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

namespace precbench {
namespace {

constexpr std::int64_t kFewestValues = 64;
constexpr std::int64_t kBlocks = 16, kBlockValues = 4096;  ///< multiples of kPlaces
constexpr std::size_t kPlaces = 4;                         ///< 16-bit values of the widest integer
constexpr std::size_t kMostDistinct = 16;  ///< tokens that a place must show before it counts as varied

/// Values at one of the four places.
template <class Stored>
struct Place {
  std::int64_t values = 0, zeros = 0;
  Stored most = 0, most_swapped = 0;  ///< as stored, and with swapped bytes
  std::set<Stored> distinct = {};     ///< at most kMostDistinct, none of them 0

  void add(Stored value) {
    Stored swapped = static_cast<Stored>(value << 8 | value >> 8);
    if constexpr (sizeof value == 4)
      swapped = (value << 24) | (value << 8 & 0xff0000) | (value >> 8 & 0xff00) | (value >> 24);
    ++values, zeros += value == 0;
    most = std::max(most, value), most_swapped = std::max(most_swapped, swapped);
    if (value != 0 && distinct.size() < kMostDistinct) distinct.insert(value);
  }
};

template <class Stored>
std::optional<IntegerLayout> layout_of(const std::byte* data, std::int64_t count, std::int64_t vocab) {
  if (count < kFewestValues) return std::nullopt;
  std::array<Place<Stored>, kPlaces> places;
  const std::int64_t blocks = count > kBlocks * kBlockValues ? kBlocks : 1;
  const std::int64_t values = blocks > 1 ? kBlockValues : count / 4 * 4;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t first = blocks > 1 ? (count - values) / (blocks - 1) * block / 4 * 4 : 0;
    for (std::int64_t i = first; i < first + values; ++i) {
      Stored value;
      std::memcpy(&value, data + i * static_cast<std::int64_t>(sizeof value), sizeof value);
      places[static_cast<std::size_t>(i) % kPlaces].add(value);
    }
  }
  // Upper half of the greatest id: 0 unless the vocabulary needs more bits than a value has.
  const auto upper = static_cast<Stored>(static_cast<std::uint64_t>(vocab - 1) >> (8 * sizeof(Stored)));
  const auto could_be_upper = [&](std::size_t place, bool big_endian) {
    return (big_endian ? places[place].most_swapped : places[place].most) <= upper;
  };
  // A constant or a few tokens may well alternate with token 0.
  const std::size_t varied = static_cast<std::size_t>(std::clamp<std::int64_t>(vocab / 2, 2, kMostDistinct));
  const auto is_lower = [&](std::size_t place, bool big_endian) {
    return !could_be_upper(place, big_endian) && places[place].distinct.size() >= varied &&
           places[place].zeros < places[place].values / 8 * 7;
  };
  for (const bool big : {false, true}) {
    const auto lower_at = [&](std::size_t place) { return is_lower(big ? kPlaces - 1 - place : place, big); };
    const auto upper_at = [&](std::size_t place) {
      return could_be_upper(big ? kPlaces - 1 - place : place, big);
    };
    if (!lower_at(0) || !upper_at(1) || !upper_at(3)) continue;
    if (lower_at(2)) return IntegerLayout{2 * static_cast<int>(sizeof(Stored)), big};
    if (upper_at(2) && sizeof(Stored) == 2) return IntegerLayout{8, big};
  }
  return std::nullopt;
}

}  // namespace

std::optional<IntegerLayout> wider_layout(const std::byte* data, std::int64_t count, TokenWidth width,
                                          std::int64_t vocab) {
  if (width == TokenWidth::u16) return layout_of<std::uint16_t>(data, count, vocab);
  if (width == TokenWidth::u32) return layout_of<std::uint32_t>(data, count, vocab);
  return std::nullopt;
}

std::string describe_remedy(const IntegerLayout& layout) {
  if (layout == IntegerLayout{4, false}) return "4-byte integers (int32 or uint32): name the file .u32";
  return fmt::format(
      "{}-byte {}integers (int{}): write them to a file .u32 (NumPy: fromfile(FILE, \"{}i{}\").astype(\"<u4\")"
      ".tofile(FILE_OF_UINT32))",
      layout.bytes, layout.big_endian ? "big-endian " : "", 8 * layout.bytes, layout.big_endian ? '>' : '<',
      layout.bytes);
}

}  // namespace precbench
