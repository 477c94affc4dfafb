// Finds and prints a topic. See help_command.h.
#include "bench/cli/help_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/cli/completion.h"
#include "bench/cli/help_topics.h"
#include "kernels/base/errors.h"
#include "results/text/lines.h"

namespace precbench {
namespace {

void print_text(const std::string& text) { std::fputs(text.c_str(), stdout); }

void print_program(const CLI::App& program) {
  print_text(program.get_formatter()->make_help(&program, program.get_name(), CLI::AppFormatMode::Normal));
  std::vector<NamedText> rows = {{"completion bash", "completion script"}};
  for (const HelpTopic& topic : help_topics()) rows.emplace_back(topic.name, topic.what);
  print_text("\nprecbench help COMMAND explains a command. Other topics:\n" +
             definitions(rows, plain_screen(STDOUT_FILENO)));
}

const CLI::App* find_command(const CLI::App& program, const std::string& name) {
  for (const CLI::App* command : visible_commands(program))
    if (command->get_name() == name) return command;
  return nullptr;
}

}  // namespace

CLI::App* add_help_command(CLI::App& app, HelpCommand& command) {
  CLI::App* sub = app.add_subcommand("help", "help on a command or topic; completion of bash");
  sub->footer(
      "Examples:\n"
      "  # lists, ranges, sets and names that flags take\n"
      "  precbench help values\n"
      "  # completion in this shell\n"
      "  source <(precbench help completion bash)");
  sub->add_option("TOPIC", command.words, "command, values, status, environment, or completion bash")
      ->type_name("");
  return sub;
}

std::vector<std::string> help_words(const std::vector<HelpPage>& pages) {
  std::vector<std::string> words;
  for (std::size_t i = 1; i < pages.size(); ++i) words.push_back(pages[i].name);
  for (const HelpTopic& topic : help_topics()) words.emplace_back(topic.name);
  words.emplace_back("completion");
  return words;
}

int help(const CLI::App& program, const HelpCommand& command) {
  const std::vector<HelpPage> pages = pages_of(program);
  const std::vector<std::string>& words = command.words;
  const std::string topic = words.empty() ? "" : words.front();
  const std::size_t most = topic == "completion" ? 2 : 1;
  if (words.size() > most) throw InvalidInput(fmt::format("help: unexpected argument {}", words[most]));
  if (topic.empty()) {
    print_program(program);
    return 0;
  }
  if (topic == "man")
    throw InvalidInput("help: the man page is removed; precbench help COMMAND has its text");
  if (topic == "completion") return print_text(completion_script(pages, words.size() > 1 ? words[1] : "")), 0;
  if (const CLI::App* found = find_command(program, topic)) return print_text(found->help(program.get_name())), 0;
  for (const HelpTopic& one : help_topics())
    if (topic == one.name) return print_text(one.text(pages, plain_screen(STDOUT_FILENO))), 0;
  const std::string near = nearest(topic, help_words(pages));
  throw InvalidInput(fmt::format("help: unknown topic {}; {}", topic,
                                 near.empty()
                                     ? fmt::format("it is one of {}", fmt::join(help_words(pages), ", "))
                                     : fmt::format("did you mean {}?", near)));
}

}  // namespace precbench
