// Eight lanes, each summing every eighth 8-byte word, so that their multiplications overlap. See checksum.h.
#include "kernels/base/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace precbench {
namespace {

static_assert(std::endian::native == std::endian::little, "words are summed as they lie in memory");

constexpr std::size_t kLanes = 8;
constexpr std::int64_t kWord = sizeof(std::uint64_t);
// Odd numbers without a pattern: the fractional bits of the square root of 3 and of the golden ratio.
constexpr std::uint64_t kSpread = 0xbb67ae8584caa73bu, kOdd = 0x9e3779b97f4a7c15u;

/// One to one in the state and in the word: a difference is never lost. Low-entropy words are spread first,
/// or bits of the next word could cancel them. The rotation moves the highest bits down, since multiplication
/// only carries upwards.
constexpr std::uint64_t mixed(std::uint64_t state, std::uint64_t word) {
  return std::rotl(state ^ word * kSpread, 29) * kOdd;
}

std::uint64_t word_at(const unsigned char* data) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return word;
}

}  // namespace

std::uint64_t checksum(const void* data, std::int64_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::array<std::uint64_t, kLanes> lanes;
  for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = mixed(kOdd, i);
  std::int64_t left = bytes;
  for (constexpr std::int64_t kAll = kLanes * kWord; left >= kAll; left -= kAll, at += kAll)
    for (std::size_t i = 0; i < kLanes; ++i)
      lanes[i] = mixed(lanes[i], word_at(at + static_cast<std::int64_t>(i) * kWord));
  std::uint64_t sum = static_cast<std::uint64_t>(bytes);  // distinguishes trailing zeros from none
  for (const std::uint64_t lane : lanes) sum = mixed(sum, lane);
  for (; left >= kWord; left -= kWord, at += kWord) sum = mixed(sum, word_at(at));
  std::uint64_t last = 0;
  if (left > 0) std::memcpy(&last, at, static_cast<std::size_t>(left));
  sum = mixed(sum, last);
  sum = (sum ^ sum >> 32) * kOdd;
  return sum ^ sum >> 29;
}

}  // namespace precbench
