// The sections of a report. Each function gives sections without lines and table where the records have
// nothing for it; the report leaves those out.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/analysis.h"
#include "tools/columns.h"
#include "tools/convergence.h"
#include "tools/document.h"

namespace precbench {

/// The records of one machine. Machines are never compared, so each has tables of its own.
struct Part {
  RecordRefs records;
  Analysis analysis;
  std::string machine;
  bool all_ok = true;
};

struct ReportInput {
  const RecordSet& set;
  std::vector<Part> parts;
  std::map<std::string, int>
      styles;  ///< recipe to line type of the figures, the same in all of them; bf16 is 1

  bool several_machines() const { return parts.size() > 1; }
};

/// The input must outlive its parts' records, which point into `set`.
ReportInput make_input(const RecordSet& set);

// A section without lines and without a table is not shown.
Section summary_section(const ReportInput& input);
Section speed_section(const ReportInput& input, const Part& part);
Section scaling_section(const ReportInput& input, const Part& part);
Section memory_section(const ReportInput& input, const Part& part);
Section time_section(const ReportInput& input, const Part& part);
Section convergence_section(const ReportInput& input, const Part& part);
Section published_section(const ReportInput& input);
Section failures_section(const ReportInput& input);
Section emulated_section(const ReportInput& input);
Section warnings_section(const ReportInput& input);
Section legend_section(const ReportInput& input);
Section environment_section(const ReportInput& input);

// What several of them need.

/// A group whose runs are long enough to be judged.
struct Study {
  const Group* group = nullptr;
  std::vector<RecipeConvergence> recipes;  ///< bf16 first
};

/// Empty where the runs of a part only time the recipes.
std::vector<Study> studies_of(const Part& part);

/// "3 cases"
std::string plural(std::size_t count, const char* noun);

/// A field of a row; null if the row has none or it is no number.
std::optional<double> number_of(const Row& row, const std::string& key);
std::string text_of(const Row& row, const std::string& key);
std::string recipe_of(const Row& row);
/// With what else is said of how the recipe is applied: "rowwise, gather fp8".
std::string recipe_of(const Part& part, const Row& row);
/// The same of a row's fields alone.
Row row_of(const RecipeConvergence& recipe);

/// The fields that tell a group from the others of its part, "llama3.2-1b, seq 2048, batch 8", but for those
/// in `without`.
std::string setting_of(const Part& part, const Row& row, const std::vector<std::string>& without = {});

/// For each model the group that shows a recipe's effect best: most recipes that ran, then the most tokens
/// per GPU, then the fewest GPUs. For figures with a bar per recipe.
std::vector<const Group*> typical_groups(const Part& part);

/// "Memory" or, where there are several machines, "Memory on NVIDIA H200".
std::string title_on(const ReportInput& input, const Part& part, const std::string& title);

/// What stands above a figure: "llama3.2-1b, batch 8, NVIDIA H200".
std::string figure_heading(const Part& part, const std::string& setting);

/// "speed-nvidia-h200-llama3.1-8b": letters, digits, '-' and '.'.
std::string file_name(const std::string& text);

/// False for a column that says the same of every row of a part, or nothing.
bool worth_showing(const Column& column, const Part& part);

/// The columns of `topic` that are worth showing, a line per row of the analysis.
Table table_of(const Part& part, Topic topic);

/// Starts a table with columns that name a row: the fields that vary, then the recipe and its modifiers.
struct RowTable {
  Table table;
  std::vector<std::string> keys;

  explicit RowTable(const Part& part);
  /// Begins a line with the cells that name `row`; the caller adds the others.
  std::vector<std::string>& begin(const Row& row);
};

}  // namespace precbench
