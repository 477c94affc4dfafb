// Scripts of three shells. See completion.h.
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

/// Replaces every `what` in the text.
std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
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

/// Quotes a word for zsh's _describe: "name:text".
std::string zsh_item(const std::string& name, const std::string& text) {
  return "'" + replaced(replaced(name, ":", "\\:") + ":" + text, "'", "'\\''") + "'";
}

std::string zsh_script(const std::vector<HelpPage>& pages) {
  Words commands;
  for (std::size_t i = 1; i < pages.size(); ++i)
    commands.push_back(zsh_item(pages[i].name, pages[i].description));
  for (const HelpFlag& flag : pages.front().flags) commands.push_back(zsh_item(flag.names.back(), flag.text));
  std::string script = fmt::format(R"(#compdef precbench
# zsh completion of precbench: precbench help completion zsh
_precbench() {{
  local -a commands flags
  if ((CURRENT == 2)); then
    commands=({})
    _describe command commands
    return
  fi
  case "$words[2] $words[CURRENT-1]" in
)",
                                   joined(commands));
  const auto describe = [](const Value& value) -> std::string {
    switch (value.follows) {
      case Follows::words:
        return fmt::format("compset -P '*,'; compadd -- {}; return", joined(value.words));
      case Follows::words_or_file:
        return fmt::format("compset -P '*,'; compadd -- {}; _files -g '*.json'; return", joined(value.words));
      case Follows::folder:
        return "_files -/; return";
      case Follows::file:
        return "_files; return";
      default:
        return "return";
    }
  };
  for (const auto& [value, labels] : labels_by_value(pages, describe))
    script += fmt::format("    {}) {} ;;\n", fmt::join(labels, "|"), value);
  script += "  esac\n  case $words[2] in\n";
  for (std::size_t i = 1; i < pages.size(); ++i) {
    Words items;
    for (const HelpFlag& flag : pages[i].flags)
      for (const std::string& name : flag.names) items.push_back(zsh_item(name, flag.text));
    const Words words = argument_words(pages[i], pages);
    const std::string other = takes_files(pages[i]) ? "_files"
                              : words.empty()       ? ""
                                                    : "compadd -- " + joined(words);
    script += fmt::format("    {})\n      flags=({})\n      {}\n      ;;\n", pages[i].name,
                          fmt::join(items, "\n             "), other.empty() ? ":" : other);
  }
  return script + R"(  esac
  [[ $PREFIX == -* ]] && _describe flag flags
}
if [[ $funcstack[1] == _precbench ]]; then
  _precbench "$@"
else
  compdef _precbench precbench
fi
)";
}

std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

/// `when`: fish's condition.
std::string fish_flag(const std::string& when, const HelpFlag& flag) {
  std::string line = fmt::format("complete -c precbench -n {}", when);
  for (const std::string& name : flag.names)
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  const Value value = value_of(flag);
  const std::string words =
      flag.is_list() ? fmt::format("(__fish_append , {})", joined(value.words)) : joined(value.words);
  switch (value.follows) {
    case Follows::nothing:
      break;
    case Follows::words:
      line += " -x -a " + fish_quoted(words);
      break;
    case Follows::words_or_file:
      line += " -r -F -a " + fish_quoted(words);
      break;
    case Follows::file:
      line += " -r -F";
      break;
    case Follows::folder:
      line += " -x -a '(__fish_complete_directories)'";
      break;
    case Follows::other:
      line += " -x";
  }
  return line + " -d " + fish_quoted(flag.text) + "\n";
}

std::string fish_script(const std::vector<HelpPage>& pages) {
  std::string script = "# fish completion of precbench: precbench help completion fish\n";
  for (const HelpFlag& flag : pages.front().flags) script += fish_flag("__fish_use_subcommand", flag);
  for (std::size_t i = 1; i < pages.size(); ++i) {
    const HelpPage& page = pages[i];
    const std::string inside = fmt::format("'__fish_seen_subcommand_from {}'", page.name);
    script += fmt::format("complete -c precbench -n __fish_use_subcommand -f -a {} -d {}\n", page.name,
                          fish_quoted(page.description));
    for (const HelpFlag& flag : page.flags) script += fish_flag(inside, flag);
    if (const Words words = argument_words(page, pages); !words.empty())
      script += fmt::format("complete -c precbench -n {} -f -a {}\n", inside, fish_quoted(joined(words)));
    else if (!takes_files(page))
      script += fmt::format("complete -c precbench -n {} -f\n", inside);
  }
  return script;
}

}  // namespace

std::vector<std::string> completion_shells() { return {"bash", "zsh", "fish"}; }

std::string completion_script(const std::vector<HelpPage>& pages, const std::string& shell) {
  if (shell == "bash") return bash_script(pages);
  if (shell == "zsh") return zsh_script(pages);
  if (shell == "fish") return fish_script(pages);
  throw InvalidInput(fmt::format("help completion: {} is none of {}", shell.empty() ? "no shell" : shell,
                                 fmt::join(completion_shells(), ", ")));
}

}  // namespace precbench
