// Writes cards to a file and to the terminal. See study_command.h.
#include "tools/report/study_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/report/sections.h"
#include "tools/text/text.h"
#include "tools/text/write_file.h"

namespace precbench {

std::optional<std::string> shares_of_time(const RecordSet& set) {
  std::vector<WorkTime> sums;
  double all = 0;
  for (const LocatedRecord& row : set.records)
    for (const WorkTime& time : row.record.durations) {
      const auto found = std::ranges::find(sums, time.work, &WorkTime::work);
      (found == sums.end() ? sums.emplace_back(WorkTime{time.work, 0}) : *found).s += time.s;
      all += time.s;
    }
  if (all <= 0) return std::nullopt;
  std::erase_if(sums, [&](const WorkTime& time) { return time.s < 0.01 * all; });
  std::ranges::stable_sort(sums, std::ranges::greater{}, &WorkTime::s);
  std::vector<std::string> shares;
  for (const WorkTime& time : sums)
    shares.push_back(fmt::format("{} {:.0f}%", time.work, time.s / all * 100));
  return fmt::format("{}", fmt::join(shares, ", "));
}

void finish_study(const std::string& folder) {
  const std::filesystem::path path(folder);
  const RecordSet set = read_records({(path / "records.jsonl").string()});
  const ReportInput input = make_input(set);
  // Write to a temporary name and rename, so that concurrent readers see a complete file.
  const std::string cards_file = (path / "cards.json").string(), next = cards_file + ".next";
  write_file(next, json_text(cards_to_json(input.cards)));
  std::filesystem::rename(next, cards_file);
  Document document;
  document.title = "precbench study: " + folder;
  const auto add = [&](Section section) {
    if (!section.lines.empty() || section.table) document.sections.push_back(std::move(section));
  };
  for (const auto& section : {study_section, deployment_section, readings_section, contrast_section,
                              outputs_section, loss_gap_section, age_section, ladders_section})
    add(section(input));
  for (Section& section : sensitivity_sections(input)) add(std::move(section));
  document.notice = "cards: " + cards_file;
  if (const auto shares = shares_of_time(set)) document.notice += "; time of the cases: " + *shares;
  write_standard_output(render_term(document, standard_screen("auto")));
}

}  // namespace precbench
