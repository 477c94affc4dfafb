// Reads the command line and prints evidence or tables. See law_program.h.
#include "tools/program/law_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>

#include "bench/study/token_count.h"
#include "kernels/base/errors.h"
#include "results/text/lines.h"
#include "tools/law/gap_evidence.h"
#include "tools/law/law_tables.h"
#include "tools/text/table.h"
#include "tools/text/write_file.h"

namespace precbench {
namespace {

/// Reads counts such as 8B and 15T. `flag` is named in errors.
std::vector<double> counts_of(const std::vector<std::string>& words, const char* flag) {
  std::vector<double> counts;
  for (const std::string& word : words) {
    try {
      counts.push_back(static_cast<double>(parse_token_count(word)));
    } catch (const InvalidInput&) {
      throw InvalidInput(
          fmt::format("{}: \"{}\" is not a number from 1 to 9e15, such as 8B, 15T or 1.5e9", flag, word));
    }
  }
  return counts;
}

LawSizes sizes_of(const LawCommand& command) {
  LawSizes sizes;
  if (!command.parameters.empty()) sizes.parameters = counts_of(command.parameters, "--parameters");
  if (!command.tokens.empty()) sizes.tokens = counts_of(command.tokens, "--tokens");
  if (!command.recipes.empty()) sizes.recipes = command.recipes;
  for (const std::string& recipe : sizes.recipes)
    if (!committed_law().knows(recipe))
      throw InvalidInput(fmt::format("--recipe: no study of \"{}\" stands behind the law, which knows {}",
                                     recipe, fmt::join(committed_law().recipes(), ", ")));
  return sizes;
}

/// Returns the evidence of the studies that the command names.
std::vector<GapEvidence> evidence_of(const std::vector<std::string>& studies) {
  if (studies.empty()) return committed_evidence();
  std::vector<GapEvidence> evidence;
  for (const std::string& records : studies) {
    const std::size_t before = evidence.size();
    std::copy_if(committed_evidence().begin(), committed_evidence().end(), std::back_inserter(evidence),
                 [&](const GapEvidence& one) { return one.records == records; });
    if (evidence.size() == before)
      throw InvalidInput(fmt::format(
          "--studies: no study of \"{}\" stands behind the law; results/law/evidence.csv names its records", records));
  }
  return evidence;
}

std::string text_of(const LawTable& one, const std::string& format) {
  if (format == "md") return render_markdown(one.table) + (one.note.empty() ? "" : "\n" + one.note + '\n');
  const Screen screen = plain_screen(STDOUT_FILENO);
  return one.title + '\n' + render_term(one.table, screen) +
         (one.note.empty() ? "" : paragraph(one.note, screen, ""));
}

}  // namespace

CLI::App* add_law_command(CLI::App& app, LawCommand& command) {
  CLI::App* sub = app.add_subcommand("law", "expected loss gap by model size, tokens, recipe and deployment");
  sub->footer(
      "Prints forecasts of the law of the loss gap, its terms and how it was judged. results/law.md explains them.\n"
      "\n"
      "Examples:\n"
      "  precbench law --table sizes --parameters 8B --tokens 1T,15T --recipe mxfp8\n"
      "  precbench law --table left-out,published");
  const auto add_list = [&](const char* flag, std::vector<std::string>& value, const char* help,
                            const char* type) {
    sub->add_option(flag, value, help)->type_name(type)->delimiter(',')->allow_extra_args(false);
  };
  add_list("--table", command.tables, "tables by name (default all)", "NAME[,NAME]");
  add_list("--parameters", command.parameters, "model sizes, active parameters (default 8B,70B)", "N[,N]");
  add_list("--tokens", command.tokens, "lengths of training (default 1T,15T)", "N[,N]");
  add_list("--recipe", command.recipes,
           "recipes of the tables of sizes (default tensorwise,rowwise,blockwise,mxfp8,nvfp4_all)", "NAME[,NAME]");
  add_list("--studies", command.studies,
           "studies of the table of that name, as the first column of results/law/evidence.csv (default all)",
           "NAME[,NAME]");
  sub->add_option("--format", command.format, "output format: terminal or Markdown")
      ->check(CLI::IsMember({"term", "md"}).description(""))
      ->type_name("term|md")
      ->capture_default_str();
  sub->add_option("--evidence", command.evidence,
                  "print the loss gaps that the records in a folder measured, as CSV, instead of tables")
      ->type_name("DIR");
  return sub;
}

int law(const LawCommand& command) {
  if (!command.evidence.empty()) {
    write_standard_output(evidence_csv(evidence_in(command.evidence)));
    return 0;
  }
  const std::vector<LawTable> tables =
      law_tables(committed_law(), committed_evidence(), sizes_of(command), evidence_of(command.studies));
  std::vector<std::string> names;
  for (const LawTable& one : tables) names.push_back(one.name);
  for (const std::string& wanted : command.tables)
    if (std::find(names.begin(), names.end(), wanted) == names.end())
      throw InvalidInput(
          fmt::format("--table: no table is called \"{}\"; one of {}", wanted, fmt::join(names, ", ")));
  std::string text;
  for (const LawTable& one : tables)
    if (command.tables.empty() ||
        std::find(command.tables.begin(), command.tables.end(), one.name) != command.tables.end())
      text += (text.empty() ? "" : "\n") + text_of(one, command.format);
  write_standard_output(text);
  return 0;
}

}  // namespace precbench
