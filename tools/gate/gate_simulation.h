// Shared by the gate's simulations: a random generator, and committed records as the source of noise.
#pragma once

#include <map>
#include <random>
#include <utility>

#include "tools/gate/gate_testing.h"

namespace precbench::gate_testing {

inline constexpr int kTrials = 1000;

/// Portable random generator; the standard library's distributions differ between implementations.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53;
  }
  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

 private:
  std::mt19937_64 engine_;
};

/// Returns pairs of committed records with equal ids from different files: the same work, measured twice on
/// H200s with one commit, on one day but in different sessions. Contains both orders of each pair. `results`:
/// that folder, with a trailing slash.
inline std::vector<std::pair<Record, Record>> committed_repeats(const std::string& results) {
  std::map<std::string, std::vector<Record>> by_id;
  for (const char* path : {"h200/repeats/once.jsonl.xz", "h200/repeats/again.jsonl.xz", "h200/interleaved"})
    for (const LocatedRecord& located : read_records({results + path}).records)
      if (located.record.status == Status::ok) by_id[located.record.id].push_back(located.record);
  std::vector<std::pair<Record, Record>> repeats;
  for (const auto& [id, records] : by_id)
    for (const Record& a : records)
      for (const Record& b : records)
        if (&a != &b) repeats.emplace_back(a, b);
  REQUIRE(repeats.size() >= 60);
  return repeats;
}

}  // namespace precbench::gate_testing
