// Models and recipes that a report shows. A selection changes no number: rows are compared and judged before the
// others are left out.
#pragma once

#include <string>
#include <vector>

#include "results/record/record_file.h"

namespace precbench {

struct ReportInput;

struct Selection {
  /// Names, in which * stands for any text; empty for all. BF16 stays beside any recipe.
  std::vector<std::string> models{}, recipes{};

  bool empty() const { return models.empty() && recipes.empty(); }
  bool has_model(const std::string& name) const;
  bool has_recipe(const std::string& name) const;
  bool has(const Record& record) const;
};

/// Throws InvalidInput, with the names that the records have, if a name selects none of them.
void check_selection(const Selection& selection, const RecordSet& set);

/// Replaces the ratios over BF16 by those over another recipe of the same group, whose rows come first. Throws
/// InvalidInput if no record has the recipe.
void rebase(ReportInput& input, const std::string& recipe);

/// Leaves out the rows, records and cards that are not selected.
void select(ReportInput& input, const Selection& selection);

}  // namespace precbench
