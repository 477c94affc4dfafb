// What simulations of the gate have in common: dice, and records that are committed here, whose noise they take.
#pragma once

#include <map>
#include <random>
#include <utility>

#include "tools/gate/gate_testing.h"

namespace precbench::gate_testing {

inline constexpr int kTrials = 1000;

/// Its own generator, as a library's distributions differ from another's.
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

/// Committed records of one id in different files: one work, measured twice on H200s by one commit, on one day but not in one
/// session. Both orders of each pair. `results`: that folder, with
/// its slash.
inline std::vector<std::pair<Record, Record>> committed_repeats(const std::string& results) {
  std::map<std::string, std::vector<Record>> by_id;
  for (const char* path : {"h200/repeats/once.jsonl", "h200/repeats/again.jsonl", "h200/interleaved"})
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
