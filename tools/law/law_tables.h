// Tables of the law: its terms, its forecasts for models of common sizes, and how these compare with measured gaps.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "results/text/table.h"
#include "tools/law/loss_law.h"

namespace precbench {

struct LawTable {
  std::string name, title;
  Table table;
  std::string note;  ///< one or two sentences below the table; empty: none
};

/// Sizes and lengths of training that tables show.
struct LawSizes {
  std::vector<double> parameters = {8e9, 70e9};
  std::vector<double> tokens = {1e12, 15e12};
  std::vector<std::string> recipes = {"tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4_all"};
};

/// Returns all tables of the law: sizes, sizes-continued, terms, recipes, served, studies, left-out, published, failures.
/// `evidence`: what the law was fitted to. `studies`: the part of it that the table of studies compares.
std::vector<LawTable> law_tables(const LossLaw& law, const std::vector<GapEvidence>& evidence, const LawSizes& sizes,
                                 const std::vector<GapEvidence>& studies);

/// Returns forecasts for every combination of `sizes`.
LawTable sizes_table(const LossLaw& law, const LawSizes& sizes, TrainingStart training);

}  // namespace precbench
