// Sections of a report. Each function returns one section; it has neither lines nor a table if the records
// contain nothing for it, and the report then omits it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tools/analysis/analysis.h"
#include "tools/analysis/columns.h"
#include "tools/analysis/recipe_losses.h"
#include "tools/analysis/study_cards.h"
#include "tools/text/document.h"
#include "tools/text/text.h"

namespace precbench {

/// A group whose runs train for a fixed number of steps.
struct TrainedGroup {
  const Group* group = nullptr;
  std::vector<RecipeLosses> recipes;  ///< BF16 first
};

/// Records of one machine. Machines are never compared, so each has its own tables.
struct MachineRecords {
  RecordRefs records;
  Analysis analysis;
  std::string name;
  bool all_ok = true;
  const char* rank = "GPU";  ///< name of a rank: "GPU", or "rank" on the CPU device
  /// Distinct environments (hardware, host, software), and the index of each record's environment.
  std::vector<Environment> environments{};
  std::unordered_map<const Environment*, std::size_t> places{};  ///< index into `environments`
  std::vector<TrainedGroup> trained{};                           ///< empty if the runs only time the recipes
  std::vector<Row> left_out{};  ///< rows that are not selected, whose rates still serve predictions

  std::size_t environment_of(const LocatedRecord* located) const { return places.at(&located->env()); }
};

struct ReportInput {
  const RecordSet& set;
  RecordRefs records;  ///< those that the report is about
  Workloads workloads;
  std::vector<MachineRecords> machines;
  std::vector<StudyCard> cards;       ///< cards of study records, which belong to no machine part
  std::map<std::string, int> styles;  ///< label_of a row -> line type, the same in all figures

  bool several_machines() const { return machines.size() > 1; }
};

/// Line types of plots/style.gp: kRecipeStyles for recipes, the first for BF16 alone, repeated for each of
/// kModifierStyles sets of modifiers. Line types repeat if there are more recipes or modifiers.
inline constexpr int kRecipeStyles = 13, kModifierStyles = 3;

/// Builds the input of all sections. It points into `set`, which must outlive it. `against`: as in
/// study_cards().
ReportInput make_input(const RecordSet& set, const std::optional<std::string>& against = std::nullopt);

Section headline_section(const ReportInput& input);
Section summary_section(const ReportInput& input);
Section speed_section(const ReportInput& input, const MachineRecords& machine);
Section scaling_section(const ReportInput& input, const MachineRecords& machine);
Section predicted_section(const ReportInput& input, const MachineRecords& machine);
/// Returns the imported runs: whose log they come from, and what it claims beside what its numbers give.
Section imports_section(const ReportInput& input, const MachineRecords& machine);
Section memory_section(const ReportInput& input, const MachineRecords& machine);
Section time_section(const ReportInput& input, const MachineRecords& machine);
Section experts_section(const ReportInput& input, const MachineRecords& machine);
Section convergence_section(const ReportInput& input, const MachineRecords& machine);
Section study_section(const ReportInput& input);
Section contrast_section(const ReportInput& input);
Section outputs_section(const ReportInput& input);
Section loss_gap_section(const ReportInput& input);
Section deployment_section(const ReportInput& input);
Section readings_section(const ReportInput& input);
Section break_even_section(const ReportInput& input);
Section age_section(const ReportInput& input);
Section ladders_section(const ReportInput& input);
/// Returns two sections for each row with a sensitivity measurement: the sources of its recipe's loss, and
/// the layers whose BF16 computation recovers it.
std::vector<Section> sensitivity_sections(const ReportInput& input);
/// Returns what a record's recipe adds to BF16's loss of the same weights and tokens, nats; null without a
/// sensitivity measurement.
std::optional<double> gap_before_updates(const Record& record);
Section failures_section(const ReportInput& input);
Section emulated_section(const ReportInput& input);
Section unverified_section(const ReportInput& input);
Section warnings_section(const ReportInput& input);
Section legend_section(const ReportInput& input);
Section environment_section(const ReportInput& input);

// Shared by several sections.

/// Returns the groups that train; they point into the machine's analysis. Empty if the runs only time the recipes.
std::vector<TrainedGroup> trained_groups(const MachineRecords& machine);

/// Returns a mean with its interval, "+0.01500 [+0.01460, +0.01540]".
std::string mean_text(const MeanWithInterval& value, int digits = 5);
/// Formats a fraction in percent with three significant digits: "+0.659% [+0.649, +0.67]"; "-" for null.
std::string percent_text(const std::optional<MeanWithInterval>& fraction);
/// Returns the same, "-" for null.
std::string interval_or_dash(const std::optional<MeanWithInterval>& value);
/// Returns the same of an age's difference, "+0.01500 [one trunk]" without an interval, "-" for null.
std::string difference_text(const AgeInterval* age);

/// Returns a numeric field of a row; null if it is missing or not a number.
std::optional<double> number_of(const Row& row, const std::string& key);
std::string text_of(const Row& row, const std::string& key);
std::string recipe_of(const Row& row);
/// Returns the recipe with its modifiers, "tensorwise + gather fp8"; the same in every section.
std::string label_of(const Row& row);
/// Returns the label that a timed row of the card's recipe has: the case's name of the recipe, as a recipe
/// file's name differs from its content's, with modifiers.
std::string label_of(const StudyCard& card);
/// Returns the tone of a cell that begins with the name of a verdict.
Tone tone_of_verdict(const std::string& cell);
/// Returns a row with case fields only.
Row row_of(const RecipeLosses& recipe);

/// Returns the details of an environment, hardware first: "ECC on", "host vm".
std::vector<std::string> details_of(const Environment& env);
/// Returns the short name of one of a machine's environments, "A".
std::string name_of_environment(std::size_t index);

/// Returns the breakdown of the first seed that has one. Null for emulated recipes, which have no speed.
const Breakdown* breakdown_of(const Row& row);
/// Returns the sum over all operation classes.
double profiled_ms(const Breakdown& breakdown);

/// Returns the model and the fields that distinguish a group within its machine, except those in `without`:
/// "llama3.2-1b, seq 2048, batch 8, master/moments bf16".
std::string setting_of(const MachineRecords& machine, const Row& row,
                       const std::vector<std::string>& without = {});

/// Returns for each model the most informative group: most recipes that ran, then most tokens per GPU, then
/// fewest GPUs. For figures with a bar per recipe.
std::vector<const Group*> typical_groups(const MachineRecords& machine);

/// Returns "Memory" or, with several machines, "Memory on NVIDIA H200".
std::string title_on(const ReportInput& input, const MachineRecords& machine, const std::string& title);

/// Returns the heading of a figure: "llama3.2-1b, batch 8, NVIDIA H200".
std::string figure_heading(const MachineRecords& machine, const std::string& setting);

/// Returns false for a column that no table shows, that is trivial in every row, or whose
/// value is in the header.
bool worth_showing(const Column& column, const MachineRecords& machine);

/// Adds a table with one line per row of the analysis and the non-trivial columns of `topic`.
void add_table(Section& section, const MachineRecords& machine, Topic topic);

/// Table whose first columns identify a row: the varying fields, then the recipe and its modifiers.
struct RowTable {
  Table table;
  std::vector<std::string> keys;

  explicit RowTable(const MachineRecords& machine);
  /// Starts a line with the cells that identify `row`; the caller appends the others.
  std::vector<std::string>& begin(const Row& row);
  /// Moves the table into a section. Constant columns become a line above it.
  void move_to(Section& section);
};

}  // namespace precbench
