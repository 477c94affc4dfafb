// Counter-based random numbers for token sources: any element of a stream or permutation is computed
// independently, so that nothing is stored and threads share no state.
#pragma once

#include <bit>
#include <cstdint>

namespace precbench {

/// Bijective 64-bit hash: the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Combines two keys into one, for streams within streams.
constexpr std::uint64_t mix64(std::uint64_t key, std::uint64_t x) { return mix64(mix64(key) ^ x); }

/// Returns the image of `index` in the permutation of [0, n) that `key` selects; index < n, n <= 2^62. A
/// Feistel network permutes the next even power of two; cycle walking until the value is below n restricts it
/// to [0, n) and keeps it a bijection. That domain is less than 4n, so a walk takes fewer than 4 steps on
/// average.
constexpr std::uint64_t permute(std::uint64_t index, std::uint64_t n, std::uint64_t key) {
  constexpr int kRounds = 6;  // four suffice for large halves; halves of one or two bits need more to mix
  const int half_bits = n <= 4 ? 1 : (std::bit_width(n - 1) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  do {
    std::uint64_t left = index >> half_bits;
    std::uint64_t right = index & mask;
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (mix64(key + static_cast<std::uint64_t>(round), right) & mask);
      left = right;
      right = next;
    }
    index = left << half_bits | right;
  } while (index >= n);
  return index;
}

}  // namespace precbench
