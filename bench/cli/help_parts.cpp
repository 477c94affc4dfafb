// Splits the footers of commands. See help_parts.h.
#include "bench/cli/help_parts.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <string_view>

#include "bench/cli/axis.h"

namespace precbench {
namespace {

std::string without_newlines_at_end(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

}  // namespace

HelpFooter footer_of(const CLI::App& command) {
  constexpr std::string_view kHeading = "Examples:\n";
  const std::string footer = command.get_footer();
  const std::size_t at = footer.starts_with(kHeading) ? 0 : footer.find("\n" + std::string(kHeading));
  if (at == footer.npos) return {without_newlines_at_end(footer), ""};
  const std::size_t begin = footer.find(kHeading, at) + kHeading.size();
  return {without_newlines_at_end(footer.substr(0, at)), without_newlines_at_end(footer.substr(begin))};
}

std::string examples_of(const CLI::App& command) { return footer_of(command).examples; }

std::vector<std::string> HelpFlag::choices() const {
  constexpr std::string_view kList = ",...";
  const std::string words = is_list() ? value.substr(0, value.size() - kList.size()) : value;
  if (words.find('|') == words.npos) return {};
  std::vector<std::string> known = split(words, '|');
  std::erase_if(
      known, [](const std::string& word) { return std::isupper(static_cast<unsigned char>(word[0])) != 0; });
  return known;  // without placeholders such as X%
}

std::vector<const CLI::App*> visible_commands(const CLI::App& program) {
  return program.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

HelpPage page_of(const CLI::App& command) {
  HelpPage page{command.get_name(), command.get_description(), {}, {}, footer_of(command)};
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    HelpFlag flag{{},
                  option->get_type_size() == 0 ? "" : option->get_type_name(),
                  option->get_description(),
                  option->get_group()};
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    const bool argument = flag.names.empty();
    if (argument) flag.names.push_back(option->get_name());
    (argument ? page.arguments : page.flags).push_back(std::move(flag));
  }
  return page;
}

std::vector<HelpPage> pages_of(const CLI::App& program) {
  std::vector<HelpPage> pages = {page_of(program)};
  for (const CLI::App* command : visible_commands(program)) pages.push_back(page_of(*command));
  return pages;
}

}  // namespace precbench
