// Parsing of the command line, and exit statuses. See cli.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "bench/cli/cli.h"
#include "bench/cli/help_parts.h"
#include "bench/cli/text_table.h"
#include "bench/process/tell.h"
#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

/// Formats --help: names of a flag separated by ", ", descriptions wrapped to the terminal's width.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kColumn); }

  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    return fmt::format("{}",
                       fmt::join(split(CLI::Formatter::make_option_name(option, is_positional), ','), ", "));
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    constexpr std::size_t kWidth = kTerminalWidth - kColumn;
    const std::string text = CLI::Formatter::make_option_desc(option);
    const std::size_t end = std::min(text.rfind(" (default "), text.size());
    const std::string default_value = text.substr(end);  // stays on one line
    std::vector<std::string> lines = wrapped_lines(text.substr(0, end), kWidth);
    if (lines.back().size() + default_value.size() <= kWidth)
      lines.back() += default_value;
    else
      lines.push_back(default_value.substr(1));
    return fmt::format("{}", fmt::join(lines, "\n"));
  }

 private:
  static constexpr std::size_t kColumn = 36;  ///< where descriptions begin
};

/// Returns the error message for an unknown flag or argument, with the nearest valid one.
std::string unexpected(const CLI::App& app, const std::string& word) {
  std::vector<std::string> valid;
  const bool flag = word.starts_with("-");
  if (flag) {
    for (const CLI::Option* option : app.get_options())
      for (const std::string& name : option->get_lnames()) valid.push_back("--" + name);
  } else {
    for (const CLI::App* command : visible_commands(app)) valid.push_back(command->get_name());
  }
  const std::string near = nearest(word.substr(0, word.find('=')), valid);
  const char* kind = flag ? "unknown flag" : valid.empty() ? "unexpected argument" : "unknown command";
  return fmt::format("{} {}{}", kind, word, near.empty() ? "; see --help" : "; did you mean " + near + "?");
}

/// Returns the first word that the command does not know. CLI11 keeps the separator "--" among these words.
std::optional<std::string> first_extra(const CLI::App& command) {
  for (const std::string& word : command.remaining())
    if (word != "--") return word;
  return std::nullopt;
}

/// Returns the visible commands, "sweep, study, ...".
std::string commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : visible_commands(app)) names.push_back(command->get_name());
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Returns true for commands whose defaults alone are not worth running: a command typed to see what it does
/// must not train for a minute.
bool needs_arguments(const CLI::App& command) {
  return command.get_name() == "sweep" || command.get_name() == "run";
}

/// Flushes standard output. Returns an error message if anything could not be written.
std::optional<std::string> unwritten() {
  errno = 0;
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return std::nullopt;
  return fmt::format("cannot write standard output: {}", error_text(errno ? errno : EIO));
}

/// Prints one line; the middle of a very long message is cut.
void print_error(const std::string& message) {
  constexpr std::size_t kHead = 600, kTail = 300;
  const bool fits = message.size() <= kHead + kTail;
  tell("precbench: " +
       (fits ? message : message.substr(0, kHead) + " ... " + message.substr(message.size() - kTail)));
}

}  // namespace

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  const auto fail = [](const std::string& line) {
    print_error(line);
    return 2;
  };
  app.allow_extras();
  const auto formatter = std::make_shared<HelpFormatter>();
  app.formatter(formatter);
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    command->allow_extras();
    command->formatter(formatter);
  }
  std::vector<const char*> words(argv, argv + argc);
  // Topics of help are words, also those that are commands.
  if (argc > 2 && words[1] == std::string_view("help") && *words[2] != '-')
    words.insert(words.begin() + 2, "--");
  try {
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::Success& done) {
    return exit_status_of([&] { return app.exit(done); });
  } catch (const CLI::ParseError& error) {
    return fail(error.what());
  }
  for (const CLI::App* command : app.get_subcommands())
    if (command->count() > 1) return fail("unexpected argument " + command->get_name() + ": given twice");
  for (const CLI::App* command : app.get_subcommands())
    if (const auto extra = first_extra(*command)) return fail(unexpected(*command, *extra));
  if (const auto extra = first_extra(app)) return fail(unexpected(app, *extra));
  for (const CLI::App* command : app.get_subcommands())
    if (argc == 2 && needs_arguments(*command)) {
      tell_raw(fmt::format(
          "precbench {} needs at least one argument. Examples:\n{}\nprecbench {} --help lists all flags.\n",
          command->get_name(), examples_of(*command), command->get_name()));
      return 2;
    }
  if (app.get_subcommands().size() != 1) {
    tell_raw(
        "precbench compares low-precision training recipes with BF16 on this machine. Start with:\n"
        "  precbench sweep --model tiny --recipe bf16,rowwise,mxfp8 --steps 40 --out out/first\n"
        "  precbench report out/first\n"
        "Commands: " +
        commands_of(app) + ". precbench help COMMAND explains one.\n");
    return 2;
  }
  return std::nullopt;
}

int exit_status_of(const std::function<int()>& command, Printed printed) {
  const auto fail = [](const std::exception& error, int status) {
    print_error(error.what());
    return status;
  };
  try {
    const int status = command();
    const auto why = unwritten();
    if (!why) return status;
    print_error(*why);
    return printed == Printed::result ? 2 : status;
  } catch (const InvalidInput& error) {
    return fail(error, 2);
  } catch (const OutOfMemory& error) {  // outside of cases: a file that cannot be mapped
    return fail(error, 2);
  } catch (const std::system_error& error) {
    return fail(std::runtime_error(error.what() + limit_text(error.code())), 2);
  } catch (const std::bad_alloc&) {
    return fail(std::runtime_error("out of host memory"), 1);
  } catch (const std::exception& error) {
    return fail(error, 1);
  }
}

}  // namespace precbench
