// Script of bash. See completion.h.
#include "bench/cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "bench/cli/help_command.h"
#include "bench/cli/recipe_sets.h"
#include "kernels/base/errors.h"
#include "models/config/config.h"

namespace precbench {
namespace {

using Words = std::vector<std::string>;

/// Kinds of values that follow a flag.
enum class Follows : std::uint8_t { nothing, words, words_or_file, file, folder, other };

struct Value {
  Follows follows = Follows::nothing;
  Words words;
};

Words recipe_words() {
  Words words;
  for (const Recipe& recipe : listed_recipes()) words.push_back(recipe.name);
  for (const RecipeSet& set : recipe_sets()) words.emplace_back(set.name);
  return words;
}

Words model_words() {
  Words words;
  for (const ModelConfig& preset : model_presets()) words.push_back(preset.name);
  return words;
}

Value value_of(const HelpFlag& flag) {
  const std::string& name = flag.names.back();
  if (flag.value.empty()) return {};
  if (name == "--recipe") return {Follows::words_or_file, recipe_words()};
  if (name == "--model") return {Follows::words_or_file, model_words()};
  if (const Words words = flag.choices(); !words.empty()) return {Follows::words, words};
  // Free text of a case's field, such as that of --data, may name a file.
  if (flag.value == "FILE" || flag.value.starts_with("TEXT")) return {Follows::file, {}};
  if (flag.value == "DIR") return {Follows::folder, {}};
  return {Follows::other, {}};
}

/// Returns the words that a command takes without a flag; empty if it takes files.
Words argument_words(const HelpPage& page, const std::vector<HelpPage>& pages) {
  if (page.name == "list") return {"recipes", "models", "devices"};
  if (page.name == "help") return help_words(pages);
  return {};
}

bool takes_files(const HelpPage& page) {
  return std::any_of(page.arguments.begin(), page.arguments.end(),
                     [](const HelpFlag& argument) { return argument.names.front() == "PATH"; });
}

std::string joined(const Words& words) { return fmt::format("{}", fmt::join(words, " ")); }

Words flag_names(const HelpPage& page) {
  Words names;
  for (const HelpFlag& flag : page.flags) names.insert(names.end(), flag.names.begin(), flag.names.end());
  return names;
}

/// Returns case labels "sweep --recipe|study --recipe" by the value that follows these flags.
template <class Describe>
std::map<std::string, Words> labels_by_value(const std::vector<HelpPage>& pages, Describe&& describe) {
  std::map<std::string, Words> labels;
  for (std::size_t i = 1; i < pages.size(); ++i)
    for (const HelpFlag& flag : pages[i].flags) {
      const Value value = value_of(flag);
      if (value.follows == Follows::nothing) continue;
      for (const std::string& name : flag.names)
        labels[describe(value)].push_back(fmt::format("'{} {}'", pages[i].name, name));
    }
  return labels;
}

std::string bash_script(const std::vector<HelpPage>& pages) {
  Words commands = flag_names(pages.front());
  for (std::size_t i = 1; i < pages.size(); ++i) commands.push_back(pages[i].name);
  std::string script = fmt::format(R"(# bash completion of precbench: precbench help completion bash
_precbench() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words="" prefix=""
  COMPREPLY=()
  if [[ $current == "=" ]]; then
    current=""
  elif [[ $previous == "=" ]]; then
    previous="${{COMP_WORDS[COMP_CWORD-2]}}"
  fi
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "{}" -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}} $previous" in
)",
                                   joined(commands));
  const auto describe = [](const Value& value) -> std::string {
    switch (value.follows) {
      case Follows::words:
        return fmt::format("words=\"{}\"", joined(value.words));
      case Follows::words_or_file:
        return fmt::format("words=\"{} $(compgen -f -X '!*.json' -- \"$current\")\"", joined(value.words));
      case Follows::folder:
        return "COMPREPLY=($(compgen -d -- \"$current\")); return";
      case Follows::file:
        return "COMPREPLY=($(compgen -f -- \"$current\")); return";
      default:
        return "return";
    }
  };
  for (const auto& [value, labels] : labels_by_value(pages, describe))
    script += fmt::format("    {}) {} ;;\n", fmt::join(labels, "|"), value);
  script += R"(  esac
  if [[ -z $words ]]; then
    case "${COMP_WORDS[1]}" in
)";
  for (std::size_t i = 1; i < pages.size(); ++i) {
    const HelpPage& page = pages[i];
    script +=
        fmt::format("      {}) if [[ $current == -* ]]; then words=\"{}\"; else {}; fi ;;\n", page.name,
                    joined(flag_names(page)),
                    takes_files(page) ? "COMPREPLY=($(compgen -f -- \"$current\")); return"
                                      : fmt::format("words=\"{}\"", joined(argument_words(page, pages))));
  }
  return script + R"(    esac
  elif [[ $current == *,* ]]; then
    prefix="${current%,*},"
    current="${current##*,}"
  fi
  COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$current"))
}
complete -F _precbench precbench
)";
}

}  // namespace

std::string completion_script(const std::vector<HelpPage>& pages, const std::string& shell) {
  if (shell == "bash") return bash_script(pages);
  if (shell == "zsh")
    throw InvalidInput(
        "help completion: zsh's own script is removed; zsh loads bash's after autoload -U bashcompinit; "
        "bashcompinit");
  if (shell == "fish")
    throw InvalidInput("help completion: fish's script is removed; precbench help COMMAND lists the flags");
  throw InvalidInput(fmt::format("help completion: {} is not bash", shell.empty() ? "no shell" : shell));
}

}  // namespace precbench
