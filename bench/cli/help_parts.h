// Parts of a command's --help: what CLI11 knows about it as data, for examples and completion.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace precbench {

/// Footer of a command, split at its "Examples:" line. Both parts may be empty; neither ends in a newline.
struct HelpFooter {
  std::string text;      ///< exit status and remarks
  std::string examples;  ///< indented lines: comments (#) and commands
};
HelpFooter footer_of(const CLI::App& command);

/// Returns the lines of the examples in the command's footer.
std::string examples_of(const CLI::App& command);

/// A flag or a positional argument.
struct HelpFlag {
  std::vector<std::string> names;  ///< "-o", "--output"; of an argument "PATH"
  std::string value;               ///< "FILE", "N,...", "ddp|fsdp,..."; empty for a switch
  std::string text;                ///< one sentence
  std::string group;               ///< heading

  /// Returns true if the value is a list with commas.
  bool is_list() const { return value.ends_with(",..."); }
  /// Returns the words that the value may be, "ddp" and "fsdp"; empty if it may be anything else.
  std::vector<std::string> choices() const;
};

/// Returns the program's commands that --help lists, in its order.
std::vector<const CLI::App*> visible_commands(const CLI::App& program);

/// A command, or the program itself.
struct HelpPage {
  std::string name;         ///< "sweep"; of the program "precbench"
  std::string description;  ///< one line
  std::vector<HelpFlag> arguments, flags;
  HelpFooter footer;
};
HelpPage page_of(const CLI::App& command);
/// Returns the program's own page and those of its visible commands, in the order of --help.
std::vector<HelpPage> pages_of(const CLI::App& program);

}  // namespace precbench
