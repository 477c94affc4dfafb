// From records to what a report says: which cases belong together, which of them may be compared, and the
// ratios. Rendering knows none of it, and this knows no format.
//
// Whose work is the same, tools/analysis/workloads.h tells. A group holds the cases that differ in nothing but the recipe
// (with its modifiers, such as the gather format) and the seed, on one machine with one power limit and
// cuBLASLt, by one method version. A row is one recipe of a group, its seeds taken together. Each row is
// compared with the bf16 row of its group, never with anything else.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "results/record_file.h"
#include "tools/analysis/workloads.h"

namespace precbench {

/// Cases with equal fields but the seed, and equal status and execution path. Averages are over the seeds.
struct Row {
  RecordRefs members{};  ///< at least one
  /// machine, its power limit, cuBLASLt, CPU threads, method_version and the case; null where unknown
  CaseFields fields;
  Status status = Status::ok;
  std::optional<ExecutionPath> path{};  ///< null: the record does not say, so no ratio

  std::optional<double> tokens_per_s{};  ///< median over seeds; null for an emulated recipe
  std::optional<double>
      relative_iqr{};  ///< of the step time, samples of all seeds pooled; fraction; null where
                       ///< no seed has two
  std::optional<double> tflops_per_gpu{};                   ///< median over seeds, as are the next three
  std::optional<double> mfu_bf16{}, sol{}, sol_measured{};  ///< fractions
  std::optional<double> peak_memory{};                      ///< measured bytes, highest of the seeds
  std::optional<double> final_loss{};                       ///< trailing_mean, averaged over seeds; nats
  std::optional<double> last_grad_norm{};                   ///< of the last step, averaged over seeds

  std::optional<double> speedup{};       ///< tokens/s over bf16's; both ok and native, else null
  std::optional<double> memory_ratio{};  ///< peak over bf16's; both ok and native, else null
  std::optional<double> loss_delta{};  ///< final loss minus bf16's, mean over the seeds that both have; nats
  int paired_seeds = 0;                ///< how many those are
  std::size_t paired_steps = 0;        ///< after how many steps the pair that did fewest is compared; 0: none

  const Record& record() const { return members.front()->record; }
  bool comparable() const { return status == Status::ok && path == ExecutionPath::native; }
  bool is_bf16() const;
};

struct Group {
  std::vector<Row> rows;  ///< bf16 first, the others in the order of the records
};

enum class RowsBy { recipe, record };  ///< record: one row for each, compared with bf16 of the same seed

struct Analysis {
  /// Fields that have one value in all records, but for the recipe. They belong in a header.
  nlohmann::ordered_json constants = nlohmann::ordered_json::object();
  /// The other fields that tell groups apart, in the order of columns; then those that tell rows of a group
  /// apart, after the recipe.
  std::vector<std::string> group_keys, row_keys;
  std::vector<Group> groups;
};

/// The analysis points to the records, which must outlive it. `workloads`: of these records, and maybe of more.
Analysis analyze(const RecordRefs& records, const Workloads& workloads, RowsBy by = RowsBy::recipe);

/// What is changed of how a recipe is applied, in words, "gather fp8"; empty where nothing is: lm_head and
/// gathers in BF16, no block kept in BF16, no amax shared.
std::vector<std::string> modifiers_of(const CaseFields& fields);

/// Of cases that differ in the recipe at most those in BF16, to find the one that another is compared with: the first
/// with the same modifiers, else the first.
class Bf16Rows {
 public:
  void add(std::size_t index, const CaseFields& fields);
  /// The index of the one that a case of these fields is compared with; null where there is none.
  std::optional<std::size_t> of(const CaseFields& fields) const;

 private:
  std::map<std::vector<std::string>, std::size_t> by_modifiers_;
  std::optional<std::size_t> first_;
};

/// The seed of a case; empty if it has none.
std::string seed_of(const Record& record);

/// The runs of a baseline by seed: what is compared with them had the same first weights and data.
class SeedPairs {
 public:
  explicit SeedPairs(const RecordRefs& baseline);
  /// The first run of the same seed that has a training; null if there is none.
  const LocatedRecord* of(const LocatedRecord& located) const;

 private:
  std::unordered_map<std::string, const LocatedRecord*> by_seed_;
};

RecordRefs all_of(const RecordSet& set);

/// Records parted by machine, in the order in which the machines appear.
std::vector<RecordRefs> by_machine(const RecordRefs& records);

/// A field's value as a user would type it; empty for null.
std::string field_text(const nlohmann::ordered_json& value);

}  // namespace precbench
