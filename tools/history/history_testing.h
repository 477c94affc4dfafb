// Histories for tests: nights of cases with known changes.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "results/record/provenance.h"
#include "tools/history/history.h"
#include "tools/history/history_row.h"

namespace precbench::history_testing {

/// Time of the first night: 2026-09-01T02:00:00Z.
inline constexpr std::int64_t kFirstNight = 1788228000;

/// Returns a night's run of a recipe with uniform noise of 0.3%.
inline HistoryRow night_row(const std::string& recipe, int night, double step_ms = 100) {
  HistoryRow row;
  row.id = "id-" + recipe;
  row.time = kFirstNight + std::int64_t{86400} * night;
  row.created = utc_text(static_cast<std::time_t>(row.time));
  row.commit = "abcdef" + std::to_string(100000 + night / 2);
  row.machine = "NVIDIA H200", row.board = "GPU-1", row.driver = "580";
  std::mt19937_64 random(static_cast<std::uint64_t>(night) * 7 + recipe.size());
  random.discard(4);
  row.step_ms = step_ms * std::exp(0.0104 * (static_cast<double>(random() >> 11) * 0x1p-53 - 0.5));
  row.clock_mhz = 1755, row.power_w = 600, row.peak_bytes = 2147483648.0, row.loss = 3.5;
  row.ops = {60, 10, 10, 5, 5, 5, 0, 5};
  row.fields = std::make_shared<const nlohmann::ordered_json>(
      nlohmann::ordered_json{{"model", "tiny"}, {"recipe", recipe}});
  return row;
}

/// Returns nights of a recipe that takes `change` longer from night `at` on.
inline std::vector<HistoryRow> nights_of_case(const std::string& recipe, int count, int at = 1 << 20,
                                              double change = 0) {
  std::vector<HistoryRow> rows;
  for (int night = 0; night < count; ++night)
    rows.push_back(night_row(recipe, night, night < at ? 100 : 100 * (1 + change)));
  return rows;
}

inline HistoryRows history_of(const std::vector<std::vector<HistoryRow>>& cases) {
  HistoryRows history;
  for (const auto& rows : cases) history.rows.insert(history.rows.end(), rows.begin(), rows.end());
  return history;
}

}  // namespace precbench::history_testing
