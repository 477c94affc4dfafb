// An explanation as text, JSON and a figure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "results/text/screen.h"
#include "tools/explain/findings.h"
#include "tools/explain/waterfall.h"
#include "tools/text/document.h"

namespace precbench {

/// A trace with its explanation.
struct ExplainedTrace {
  TrainingTrace trace;
  Explanation all;
  std::string rates_of;   ///< GPU whose rates the expectations are; empty: none
  bool borrowed = false;  ///< they were measured on another GPU
};

std::string explain_text(const std::vector<ExplainedTrace>& traces, const Screen& screen);
nlohmann::ordered_json explain_json(const std::vector<ExplainedTrace>& traces);
/// Returns a document with one figure: the step of each trace by class, and after each repair.
Document explain_figure(const std::vector<ExplainedTrace>& traces);

/// Returns the last part of a path, printable.
std::string short_name(const std::string& path);

}  // namespace precbench
