// Groups records into comparable cases and computes their ratios. Rendering lives elsewhere; this module
// knows no format.
//
// tools/analysis/workloads.h decides which records measured the same work. A group holds the cases that
// differ only in recipe (including modifiers such as the gather format) and seed, on one machine with one
// power limit and cuBLASLt version, by one method version. A row is one recipe of a group, aggregated over
// its seeds. Each row is compared only with the BF16 row of its own group.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "results/record/record_file.h"
#include "tools/analysis/workloads.h"

namespace precbench {

/// Cases that agree in all fields except the seed, in status and in execution path. Averages are over the
/// seeds.
struct Row {
  RecordRefs members{};  ///< at least one
  /// machine, power limit, cuBLASLt, CPU threads, method_version and the case fields; null if unknown
  CaseFields fields;
  Status status = Status::ok;
  std::optional<ExecutionPath> path{};  ///< null if the record does not say; then there are no ratios

  std::optional<double> tokens_per_s{};  ///< median over seeds; null for an emulated recipe
  /// IQR over median of the step time, samples of all seeds pooled; null if no seed has two samples
  std::optional<double> relative_iqr{};
  std::optional<double> tflops_per_gpu{};                   ///< median over seeds, as are the next three
  std::optional<double> mfu_bf16{}, sol{}, sol_measured{};  ///< fractions
  std::optional<double> peak_memory{};                      ///< measured bytes, maximum over the seeds
  std::optional<double> final_loss{};                       ///< trailing_mean, averaged over seeds; nats
  std::optional<double> last_grad_norm{};                   ///< of the last step, mean over the seeds

  std::optional<double> speedup{};       ///< tokens/s over BF16's; null unless both are ok and native
  std::optional<double> memory_ratio{};  ///< peak memory over BF16's; null unless both are ok and native
  std::optional<double> loss_delta{};  ///< final loss minus BF16's, mean over the seeds that both have; nats
  int paired_seeds = 0;                ///< number of those seeds
  std::size_t paired_steps = 0;        ///< steps at which losses are compared (shortest pair); 0 if there is
                                       ///< no pair

  const Record& record() const { return members.front()->record; }
  bool comparable() const { return status == Status::ok && path == ExecutionPath::native; }
  bool is_bf16() const;
};

struct Group {
  std::vector<Row> rows;  ///< BF16 first, the others in record order
};

enum class RowsBy { recipe, record };  ///< record: one row per record, compared with BF16 of the same seed

struct Analysis {
  /// Fields with a single value over all records, except the recipe. They belong in a header.
  nlohmann::ordered_json constants = nlohmann::ordered_json::object();
  /// Other fields that distinguish groups, in column order, and those that distinguish rows within a group,
  /// after the recipe.
  std::vector<std::string> group_keys, row_keys;
  std::vector<Group> groups;
};

/// Groups and compares `records`, which must outlive the result. `workloads` must cover at least these
/// records.
Analysis analyze(const RecordRefs& records, const Workloads& workloads, RowsBy by = RowsBy::recipe);

/// Returns how the recipe's application was modified, as text ("gather fp8"). Empty with the defaults: BF16
/// lm_head and gathers, no BF16 blocks, no shared amax.
std::vector<std::string> modifiers_of(const CaseFields& fields);

/// Finds the BF16 case that another case is compared with, among cases that otherwise differ only in the
/// recipe: the first with the same modifiers, else the first.
class Bf16Rows {
 public:
  void add(std::size_t index, const CaseFields& fields);
  /// Returns the index of the BF16 case to compare these fields with; null if there is none.
  std::optional<std::size_t> of(const CaseFields& fields) const;

 private:
  std::map<std::vector<std::string>, std::size_t> by_modifiers_;
  std::optional<std::size_t> first_;
};

/// Returns the seed of a case; empty if it has none.
std::string seed_of(const Record& record);

/// Baseline runs indexed by seed. Runs with equal seeds share initial weights and data.
class SeedPairs {
 public:
  explicit SeedPairs(const RecordRefs& baseline);
  /// Returns the first baseline run of the same seed that has training data; null if there is none.
  const LocatedRecord* of(const LocatedRecord& located) const;

 private:
  std::unordered_map<std::string, const LocatedRecord*> by_seed_;
};

RecordRefs all_of(const RecordSet& set);

/// Splits the records by machine, in order of first appearance.
std::vector<RecordRefs> by_machine(const RecordRefs& records);

/// Returns a field's value as a user would type it; empty for null.
std::string field_text(const nlohmann::ordered_json& value);
/// Returns a field of the record's case as such text; empty if it has none.
std::string case_text(const Record& record, const char* field);

}  // namespace precbench
