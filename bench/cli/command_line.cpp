// Parsing of the command line, and exit statuses. See cli.h.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

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
#include "bench/process/standard_error.h"
#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/near_words.h"
#include "results/text/lines.h"

namespace precbench {
namespace {

/// Formats --help for the terminal's width.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    return fmt::format("{}",
                       fmt::join(split(CLI::Formatter::make_option_name(option, is_positional), ','), ", "));
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::string text = make_option_desc(option);
    return definition({make_option_name(option, is_positional) + make_option_opts(option), text}, column_,
                      screen_, text.rfind(" (default "));  // the default stays on one line
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return definition({command->get_name(), command->get_description()}, column_, screen_);
  }
  std::string make_description(const CLI::App* app) const override {
    return paragraph(app->get_description(), screen_);
  }
  std::string make_footer(const CLI::App* app) const override {
    const std::string footer = app->get_footer();
    return footer.empty() ? "" : fitted_lines(footer, screen_) + "\n";
  }

 private:
  static constexpr std::size_t kWide = 100, kColumn = 36, kNarrowColumn = 26;
  const Screen screen_ = plain_screen(STDOUT_FILENO);
  const std::size_t column_ = screen_.width < kWide ? kNarrowColumn : kColumn;  ///< where descriptions begin
};

/// Flags of other programs, and what to do here.
struct ForeignFlag {
  const char* name;
  const char* answer;
  const char* needs = "";  ///< flag that the command must have for the answer to apply, without its dashes
};
constexpr ForeignFlag kForeignFlags[] = {
    {"--tensor-parallel", "did you mean --tensor?", "tensor"},
    {"--tensor-parallel-size", "did you mean --tensor?", "tensor"},
    {"--tensor-model-parallel-size", "did you mean --tensor?", "tensor"},
    {"--pipeline-parallel", "did you mean --pipeline?", "pipeline"},
    {"--pipeline-parallel-size", "did you mean --pipeline?", "pipeline"},
    {"--pipeline-model-parallel-size", "did you mean --pipeline?", "pipeline"},
    {"--vp", "did you mean --virtual-stages?", "virtual-stages"},
    {"--vpp", "did you mean --virtual-stages?", "virtual-stages"},
    {"--num-microbatches", "did you mean --micro-batches?", "micro-batches"},
    {"--cp", "did you mean --context?", "context"},
    {"--dp", "did you mean --gpus?", "gpus"},
    {"--seq-len", "did you mean --seq?", "seq"},
    {"--batch-size", "did you mean --batch?", "batch"},
    {"--micro-batch-size", "did you mean --batch?", "batch"},
    {"--json", "did you mean --format json?", "format"},
};

/// Returns what to write in place of a flag that the command does not know; empty if nothing is near.
std::string hint_for_flag(const CLI::App& app, const std::string& flag, const FlagHint& more) {
  constexpr std::size_t kLeastBeginning = 3;  // letters of a flag that was typed in part
  std::vector<std::string> known;             // without the dashes, which all flags share
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back(name);
  const std::string bare = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  for (const ForeignFlag& foreign : kForeignFlags)
    if (flag == foreign.name &&
        (!*foreign.needs || std::count(known.begin(), known.end(), foreign.needs) > 0))
      return foreign.answer;
  if (const char* replacement = removed_field(bare)) return replacement;
  if (const std::string hint = more ? more(app.get_name(), bare) : ""; !hint.empty()) return hint;
  std::string near = nearest_strictly(bare, known);
  if (near.empty() && bare.size() >= kLeastBeginning)
    for (const std::string& name : known)
      if (name.starts_with(bare) && (near.empty() || name.size() < near.size())) near = name;
  return near.empty() ? "" : fmt::format("did you mean --{}?", near);
}

std::string hint_for_word(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::App* command : visible_commands(app)) known.push_back(command->get_name());
  if (!known.empty() && word == "version") return "did you mean --version?";
  const std::string near = nearest(word, known);
  return near.empty() ? "" : fmt::format("did you mean {}?", near);
}

/// Returns the error message for an unknown flag or argument, with the nearest valid one.
std::string unexpected(const CLI::App& app, const std::string& word, const FlagHint& more) {
  const bool flag = word.starts_with("-");
  const std::string hint =
      flag ? hint_for_flag(app, word.substr(0, word.find('=')), more) : hint_for_word(app, word);
  const char* kind = flag                            ? "unknown flag"
                     : visible_commands(app).empty() ? "unexpected argument"
                                                     : "unknown command";
  return fmt::format("{} {}; {}", kind, word, hint.empty() ? "see --help" : hint);
}

/// Returns the error message of the parser in plain words.
std::string plain_words(const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::size_t colon = text.find(": ");
  const bool without_value = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr &&
                             colon != text.npos && text.ends_with(" missing");
  return without_value ? text.substr(0, colon) + ": needs a value; see --help" : text;
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
  log_line("precbench: " +
           (fits ? message : message.substr(0, kHead) + " ... " + message.substr(message.size() - kTail)));
}

}  // namespace

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv, const FlagHint& hint) {
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
    return fail(plain_words(error));
  }
  for (const CLI::App* command : app.get_subcommands())
    if (command->count() > 1) return fail("unexpected argument " + command->get_name() + ": given twice");
  for (const CLI::App* command : app.get_subcommands())
    if (const auto extra = first_extra(*command)) return fail(unexpected(*command, *extra, hint));
  if (const auto extra = first_extra(app)) return fail(unexpected(app, *extra, hint));
  for (const CLI::App* command : app.get_subcommands())
    if (argc == 2 && needs_arguments(*command)) {
      log_text(fitted_lines(
          fmt::format(
              "precbench {} needs at least one argument. Examples:\n{}\nprecbench {} --help lists all flags.\n",
              command->get_name(), examples_of(*command), command->get_name()),
          plain_screen(STDERR_FILENO)));
      return 2;
    }
  if (app.get_subcommands().size() != 1) {
    log_text(fitted_lines(
        "precbench compares low-precision training recipes with BF16 on this machine. Start with:\n"
        "  precbench sweep --model tiny --recipe bf16,rowwise,mxfp8 --steps 40 --out out/first\n"
        "  precbench report out/first\n"
        "Commands: " +
            commands_of(app) + ". precbench help COMMAND explains one.\n",
        plain_screen(STDERR_FILENO)));
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
