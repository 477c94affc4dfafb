// Writes cards to a file and to the terminal. See study_command.h.
#include "tools/report/study_command.h"

#include <filesystem>

#include "results/record/record_file.h"
#include "tools/report/sections.h"
#include "tools/text/text.h"
#include "tools/text/write_file.h"

namespace precbench {

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
  // A study that only measures sensitivity has no cards.
  if (!input.cards.empty())
    document.sections = {study_section(input), price_section(input), age_section(input),
                         ladders_section(input)};
  for (Section& section : sensitivity_sections(input)) document.sections.push_back(std::move(section));
  document.notice = "cards: " + cards_file;
  write_standard_output(render_term(document));
}

}  // namespace precbench
