// Layouts of published runs beside those that a search proposes for the same run: `precbench plan --layout published`.
//
// Both are predicted on the same terms: recipe, global batch, dtypes of states, overlapped traffic and sharded optimizer as the
// source's framework has them, and experts' rows by all-to-all. What the source does not say is assumed (published_setting.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/cli/step_parts.h"
#include "bench/predict/layout_search.h"
#include "bench/predict/published_setting.h"

namespace precbench {

/// Number of proposals among which a published layout is looked for.
inline constexpr std::size_t kComparedProposals = 3;

enum class LayoutVerdict : std::uint8_t {
  proposed,  ///< one of the proposals has the published numbers of tensor, context, pipeline and expert ranks
  faster,    ///< another proposal is predicted to be faster
  neither,   ///< the published layout is predicted to be faster than the proposals, or nothing fits
  unknown    ///< one of the two is not predicted
};
const char* name_of(LayoutVerdict verdict);

struct LayoutComparison {
  std::string id, framework;
  PublishedSetting setting;
  std::int64_t experts = 1;  ///< published expert ranks
  LayoutEstimate published;
  bool fits = true;  ///< the published layout, in the memory that a search may use
  LayoutSearch found;
  std::size_t place = 0;  ///< of the proposal with the published ranks, from 1; 0: none has them
  LayoutVerdict verdict = LayoutVerdict::unknown;
  /// Which parts of the step make the first proposal faster; otherwise an explanation. Empty if the published layout is the
  /// first proposal.
  std::string reason;

  /// Returns the published step over that of the first proposal; 0 without one.
  double ratio() const;
};

/// Returns the runs that are compared: Megatron's with at least 16 GPUs, a stated sequence, global batch and more than data ranks,
/// one for each model, GPU, size, sequence, batch and layout, the first of the file.
std::vector<PublishedPoint> runs_with_layouts(const std::vector<PublishedPoint>& points);

/// Compares each run, several at once.
std::vector<LayoutComparison> compare_layouts(const std::vector<PublishedPoint>& points);

/// Returns a line of results/predicted/layouts.jsonl, with four digits of each number.
nlohmann::ordered_json comparison_json(const LayoutComparison& comparison);

/// Prints a table, the reasons and how many runs have each verdict.
void print_comparisons(const std::vector<LayoutComparison>& comparisons);

}  // namespace precbench
