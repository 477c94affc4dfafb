// The sections of a report. Each function gives one section, without lines and table where the records have
// nothing for it; the report leaves those out.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "tools/analysis/analysis.h"
#include "tools/analysis/columns.h"
#include "tools/analysis/convergence.h"
#include "tools/analysis/study_cards.h"
#include "tools/text/document.h"
#include "tools/text/text.h"

namespace precbench {

/// A group whose runs are long enough to be judged.
struct Study {
  const Group* group = nullptr;
  std::vector<RecipeConvergence> recipes;  ///< bf16 first
};

/// The records of one machine. Machines are never compared, so each has tables of its own.
struct MachineRecords {
  RecordRefs records;
  Analysis analysis;
  std::string name;
  bool all_ok = true;
  const char* rank = "GPU";  ///< what a rank is here: "GPU", or "rank" on the CPU device
  /// What the records say of hardware, host and software, each different one once, and whose is which.
  std::vector<Environment> environments{};
  std::unordered_map<const Environment*, std::size_t> places{};  ///< in `environments`; records share theirs
  std::vector<Study> studies{};  ///< empty where the runs only time the recipes

  std::size_t environment_of(const LocatedRecord* located) const { return places.at(&located->env()); }
};

struct ReportInput {
  const RecordSet& set;
  Workloads workloads;
  std::vector<MachineRecords> machines;
  std::vector<StudyCard> cards;       ///< of the records that studies made, which are in no part
  std::map<std::string, int> styles;  ///< label_of a row to its line type, the same in all figures

  bool several_machines() const { return machines.size() > 1; }
};

/// Line types of plots/style.gp: kRecipeStyles looks for recipes, the first for bf16 alone, then as many again
/// for each of kModifierStyles ways to apply them. Where there are more recipes or ways, looks repeat.
inline constexpr int kRecipeStyles = 13, kModifierStyles = 3;

/// The parts point into `set`, which must outlive them.
ReportInput make_input(const RecordSet& set);

Section summary_section(const ReportInput& input);
Section speed_section(const ReportInput& input, const MachineRecords& machine);
Section scaling_section(const ReportInput& input, const MachineRecords& machine);
Section memory_section(const ReportInput& input, const MachineRecords& machine);
Section time_section(const ReportInput& input, const MachineRecords& machine);
Section experts_section(const ReportInput& input, const MachineRecords& machine);
Section convergence_section(const ReportInput& input, const MachineRecords& machine);
Section study_section(const ReportInput& input);
Section price_section(const ReportInput& input);
Section age_section(const ReportInput& input);
Section ladders_section(const ReportInput& input);
/// Two sections for each row that has measured its sensitivity: what its recipe's loss comes from, and what buys it back.
std::vector<Section> sensitivity_sections(const ReportInput& input);
Section published_section(const ReportInput& input);
Section failures_section(const ReportInput& input);
Section emulated_section(const ReportInput& input);
Section warnings_section(const ReportInput& input);
Section legend_section(const ReportInput& input);
Section environment_section(const ReportInput& input);

// What several of them need.

/// Points into the part's analysis. Empty where the runs of a part only time the recipes.
std::vector<Study> studies_of(const MachineRecords& machine);

/// A field of a row; null if the row has none or it is no number.
std::optional<double> number_of(const Row& row, const std::string& key);
std::string text_of(const Row& row, const std::string& key);
std::string recipe_of(const Row& row);
/// The recipe with what is changed of how it is applied, "tensorwise + gather fp8": the same in every part.
std::string label_of(const Row& row);
/// A row with the fields alone.
Row row_of(const RecipeConvergence& recipe);

/// What a record says of where it was made, hardware first, each detail by itself: "ECC on", "host vm".
std::vector<std::string> details_of(const Environment& env);
/// Short name of one of a part's environments, "A".
std::string name_of_environment(std::size_t index);

/// Of the first seed that has one. An emulated recipe has no speed, so it has no profile either.
const Breakdown* breakdown_of(const Row& row);
/// All classes of operation together.
double profiled_ms(const Breakdown& breakdown);

/// The model and the fields that tell a group from the others of its part, but for those in `without`:
/// "llama3.2-1b, seq 2048, batch 8, master/moments bf16".
std::string setting_of(const MachineRecords& machine, const Row& row,
                       const std::vector<std::string>& without = {});

/// For each model the group that shows a recipe's effect best: most recipes that ran, then the most tokens
/// per GPU, then the fewest GPUs. For figures with a bar per recipe.
std::vector<const Group*> typical_groups(const MachineRecords& machine);

/// "Memory" or, where there are several machines, "Memory on NVIDIA H200".
std::string title_on(const ReportInput& input, const MachineRecords& machine, const std::string& title);

/// What stands above a figure: "llama3.2-1b, batch 8, NVIDIA H200".
std::string figure_heading(const MachineRecords& machine, const std::string& setting);

/// False for a column that no table shows, that has nothing to say of any row, or what the header says.
bool worth_showing(const Column& column, const MachineRecords& machine);

/// Gives `section` the columns of `topic` that are worth showing, a line per row of the analysis.
void add_table(Section& section, const MachineRecords& machine, Topic topic);

/// Starts a table with columns that name a row: the fields that vary, then the recipe and its modifiers.
struct RowTable {
  Table table;
  std::vector<std::string> keys;

  explicit RowTable(const MachineRecords& machine);
  /// Begins a line with the cells that name `row`; the caller adds the others.
  std::vector<std::string>& begin(const Row& row);
  /// Gives the table to a section. Columns that say the same in all rows become a line above it.
  void move_to(Section& section);
};

}  // namespace precbench
