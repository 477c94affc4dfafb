// Synthetic study rows with a known truth, for tests.
#pragma once

#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "results/record/record_samples.h"
#include "tools/analysis/analysis.h"

namespace precbench::study_samples {

inline constexpr int kSteps = 48;
inline constexpr double kLoss = 4, kMargin = 0.0025;

/// Builds rows of llama3.2-1b on an H200 as a study's sweep would write them.
class Rows {
 public:
  Record& add(const std::string& recipe, StudyPart part, std::int64_t trunk, std::int64_t age,
              double difference, double rung = 0) {
    Record r = samples::gpu_record(recipe, 10);
    r.study = StudyPlace{
        "0123456789abcdef", part, trunk, age, 1, rung, {}, false, {}, false, kMargin, 0.05, {}, {}};
    r.training->loss.clear();
    // BF16's loss depends on trunk and step as well; only `difference` is the recipe's.
    for (int step = 0; step < kSteps; ++step)
      r.training->loss.push_back(kLoss + 0.1 * static_cast<double>(trunk) + std::sin(step) / 10 + difference);
    r.id += std::to_string(rows_.size());
    rows_.push_back({std::move(r), {"here", 1}});
    return rows_.back().record;
  }

  /// Adds forks of three trunks at two ages with this mean; `spread` is the step between trunks.
  void add_forks(const std::string& recipe, double difference, double spread = 1e-5,
                 const std::function<void(Record&)>& change = {}) {
    for (std::int64_t trunk = 1; trunk <= 3; ++trunk)
      for (const std::int64_t age : {100, 200}) {
        Record& row =
            add(recipe, StudyPart::fork, trunk, age, difference + spread * static_cast<double>(trunk - 2));
        if (change) change(row);
      }
  }

  /// Adds trunks of 200 steps of 8 x 2048 tokens from random weights: 0.0013 and 0.0027 tokens per parameter
  /// at ages 100 and 200.
  void add_trunks(const std::function<void(Record&)>& change = {}) {
    for (std::int64_t trunk = 1; trunk <= 3; ++trunk) {
      Record& row = add("bf16", StudyPart::trunk, trunk, 0, 0);
      row.training->tokens_per_step = 8 * 2048;
      if (change) change(row);
    }
  }

  static void ask(Record& row) { row.study->asked = true; }

  /// Adds BF16, the noise floor and positive controls that are found.
  void add_frame() {
    add_forks("bf16", 0, 0);
    add_forks("bf16", 1e-6, 1e-6, [](Record& row) { perturb(row); });
    add_forks("rowwise", 0.001);
    add_forks("rowwise_e5m2", 0.003, 1e-5, [](Record& row) { row.study->apart_from = "rowwise"; });
    add_forks("rowwise_e4m1", 0.1, 1e-5, [](Record& row) { row.study->breaks = true; });
  }
  static void perturb(Record& row) {
    auto init = *row.definition->init;
    init["perturb"] = "ulp";
    row.definition->init = std::make_shared<const nlohmann::ordered_json>(init);
  }

  RecordRefs refs() const {
    RecordRefs refs;
    for (const LocatedRecord& row : rows_) refs.push_back(&row);
    return refs;
  }

 private:
  std::deque<LocatedRecord> rows_;
};

}  // namespace precbench::study_samples
