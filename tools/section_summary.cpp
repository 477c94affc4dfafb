// The summary: three sentences.
#include <fmt/format.h>

#include <algorithm>

#include "tools/columns.h"
#include "tools/distinct.h"
#include "tools/sections.h"

namespace precbench {
namespace {

struct Best {
  const Part* part = nullptr;
  const Row* row = nullptr;
};

/// The row with the highest speed-up for each machine and model, bf16 left out.
std::vector<Best> fastest(const ReportInput& input) {
  std::vector<Best> best;
  for (const Part& part : input.parts)
    for (const Group& group : part.analysis.groups)
      for (const Row& row : group.rows) {
        if (!row.speedup || recipe_of(row) == "bf16") continue;
        auto known = std::find_if(best.begin(), best.end(), [&](const Best& b) {
          return b.part == &part && text_of(*b.row, "model") == text_of(row, "model");
        });
        if (known == best.end())
          best.push_back({&part, &row});
        else if (*row.speedup > *known->row->speedup)
          known->row = &row;
      }
  return best;
}

std::string coverage(const ReportInput& input) {
  Distinct models, machines;
  std::size_t emulated = 0, failed = 0;
  for (const Part& part : input.parts) {
    machines.add(part.machine);
    for (const Group& group : part.analysis.groups)
      for (const Row& row : group.rows) {
        models.add(text_of(row, "model"));
        if (row.status != Status::ok)
          failed += row.members.size();
        else if (row.path == ExecutionPath::emulated)
          emulated += row.members.size();
      }
  }
  std::string text = fmt::format("{} of {} on {}", plural(input.set.records.size(), "case"), models.joined(),
                                 machines.joined());
  if (emulated > 0) text += fmt::format(", {} of them emulated (losses only, no speed)", emulated);
  return text + (failed > 0 ? fmt::format(", {} failed.", failed) : ", none failed.");
}

std::string speed(const ReportInput& input) {
  Distinct texts;
  for (const Best& best : fastest(input)) {
    const Row& row = *best.row;
    std::string text = fmt::format("{} {:.2f}x with {} ({}", text_of(row, "model"), *row.speedup,
                                   recipe_of(*best.part, row), setting_of(*best.part, row, {"model"}));
    if (text.back() != '(') text += "; ";
    text += fmt::format("{} tokens/s", rate_text(*row.tokens_per_s));
    if (row.memory_ratio) text += fmt::format(", {:.2f}x its memory", *row.memory_ratio);
    texts.add(text + (input.several_machines() ? ", on " + best.part->machine + ")" : ")"));
  }
  if (texts.texts.empty()) return "No recipe ran natively beside bf16, so there is no speed-up to report.";
  return fmt::format("The highest speed-up over bf16 of each model: {}.", fmt::join(texts.texts, "; "));
}

}  // namespace

Section summary_section(const ReportInput& input) {
  return {"Summary", {coverage(input), speed(input)}, {}, {}};
}

}  // namespace precbench
