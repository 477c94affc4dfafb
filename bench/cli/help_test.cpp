// --help of every command: wording, second flag names and examples.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "bench/cli/cli.h"
#include "bench/cli/cli_testing.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kCommands = {"",       "sweep", "study", "run",   "list",
                                            "report", "check", "help",  "doctor"};

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Returns the first line of every flag's description in a help text.
std::vector<std::string> descriptions_in(const std::string& help) {
  constexpr std::size_t kColumn = 36;
  std::vector<std::string> found;
  bool wanted = false;
  for (const std::string& line : lines_of(help)) {
    const bool flag = line.starts_with("  -");
    if (!flag && !wanted) continue;
    wanted = flag && (line.size() <= kColumn || line[kColumn - 1] != ' ');  // description on the next line
    if (!wanted) found.push_back(line.substr(std::min(kColumn, line.size())));
  }
  return found;
}

/// Returns the commands below "Examples:" in a help text, without the program's name.
std::vector<std::string> examples_in(const std::string& help) {
  const std::string program = "  precbench ";
  std::vector<std::string> found;
  const std::size_t at = help.find("\nExamples:\n");
  REQUIRE(at != help.npos);
  for (const std::string& line : lines_of(help.substr(at)))
    if (line.starts_with(program)) found.push_back(line.substr(program.size()));
  return found;
}

SweepCommand parsed(std::vector<std::string> words) {
  CLI::App app;
  SweepCommand command;
  add_sweep_command(app, command);
  words.insert(words.begin(), {"precbench", "sweep"});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  CHECK(!parse_command_line(app, static_cast<int>(argv.size()), argv.data()));
  return command;
}

}  // namespace

TEST_CASE("help: descriptions begin with neither an article nor a question word", "[cli][help]") {
  const std::set<std::string> kRefused = {"a",     "an",    "the",  "of",    "what", "whether", "how",
                                          "which", "whose", "who",  "where", "when", "those",   "that",
                                          "as",    "write", "also", "make",  "do",   "print"};
  for (const std::string& command : kCommands) {
    const std::vector<std::string> descriptions = descriptions_in(precbench_says(command + " --help").text);
    CHECK(!descriptions.empty());
    for (const std::string& description : descriptions) {
      INFO(command << ": " << description);
      std::string word = description.substr(0, description.find(' '));
      std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
      CHECK(!word.empty());
      CHECK(!kRefused.contains(word));
    }
  }
}

TEST_CASE("help: commands that run something end with examples that run", "[cli][help]") {
  const TempDirectory directory;
  for (const char* folder : {"out/first", "out/nightly"}) fs::create_directories(directory / folder);
  for (const char* file : {"out/first/records.jsonl", "out/nightly/records.jsonl", "baseline.jsonl"})
    fs::copy_file(PRECBENCH_SOURCE_DIR "/results/baseline/cpu-tiny.jsonl", directory / file);
  fs::copy_file(PRECBENCH_SOURCE_DIR "/results/cpu/study-tiny.jsonl.xz", directory / "out/study.jsonl");  // read by its content
  fs::create_directory_symlink(PRECBENCH_SOURCE_DIR "/bench", directory / "bench");
  for (const auto& [command, fewest] : std::map<std::string, std::size_t>{
           {"sweep", 4}, {"run", 4}, {"study", 2}, {"report", 2}, {"check", 2}}) {
    const std::vector<std::string> examples = examples_in(precbench_says(command + " --help").text);
    CHECK((examples.size() >= fewest && examples.size() <= 6));
    for (std::string arguments : examples) {
      CHECK(arguments.starts_with(command + " "));
      const bool runs = command == "sweep" || command == "study";
      if (command == "run")
        arguments.replace(0, command.size(), "sweep --dry-run");  // checks it without running
      if (runs && !contains(arguments, "--dry-run")) arguments += " --dry-run";
      const Answer answer = output_of("cd " + directory.path().string() +
                                      " && " PRECBENCH_BINARY_DIR "/precbench " + arguments);
      INFO(arguments << "\n" << answer.text);
      // A check may find that these few steps are too noisy to judge, and a history that these are too few nights: 3.
      const bool judges = command == "check" || contains(arguments, "--fail-on");
      CHECK((answer.status == 0 || (judges && answer.status == 3)));
    }
  }
}

TEST_CASE("flags: both names of a field set it and help shows both", "[cli][help]") {
  const std::string help = precbench_says("sweep --help").text, study = precbench_says("study --help").text;
  std::set<std::string> aliases;
  for (const Field& field : case_fields()) {
    const std::string alias = alias_flag_of(field);
    if (alias.empty()) continue;
    INFO(alias);
    aliases.insert(alias);
    for (const std::string& text : {help, study})
      CHECK(contains(text, "\n  " + flag_of(field) + ", " + alias + " "));
    CHECK(find_field(field.alias) == &field);
    CHECK(find_field(alias.substr(2)) == &field);
    const std::string value = field.choices.empty() ? "0.5" : field.choices.back();
    const Axes expected = {{field.name, {value}}};
    CHECK(parsed({flag_of(field), value}).axes == expected);
    CHECK(parsed({alias, value}).axes == expected);
    CHECK(parsed({alias + "=" + value}).axes == expected);
  }
  CHECK(aliases == std::set<std::string>{"--master-dtype", "--grad-dtype", "--optim-dtype", "--lm-head",
                                         "--grad-clip", "--moe-aux-coef", "--cuda-graph", "--lora",
                                         "--sample-packing", "--tp", "--pp"});
  CHECK(parsed({"--jobs", "3"}).options.at_once == 3);
  CHECK(parsed({"--at-once", "3"}).options.at_once == 3);
}

TEST_CASE("flags: both names of an axis append to it", "[cli][help]") {
  const std::vector<Plan> grid =
      grid_of(parsed({"--device", "cpu", "--master", "fp32", "--master-dtype", "bf16,bf16_sr"}));
  REQUIRE(grid.size() == 3);
  CHECK((grid[0].fields.master == "fp32" && grid[2].fields.master == "bf16_sr"));
}

TEST_CASE("no arguments: an introduction on standard error and status 2", "[cli][help]") {
  const Answer answer = precbench_says("");
  CHECK(answer.status == 2);
  CHECK(lines_of(answer.text).size() == 4);
  CHECK(contains(answer.text, "\n  precbench sweep --model tiny --recipe "));
  CHECK(contains(answer.text, "\n  precbench report out/first\n"));
  CHECK(contains(answer.text, "precbench help COMMAND"));
}

TEST_CASE("sweep and run without arguments: examples on standard error and status 2", "[cli][help]") {
  for (const std::string command : {"sweep", "run"}) {
    const Answer answer = precbench_says(command);
    INFO(answer.text);
    CHECK(answer.status == 2);
    std::size_t examples = 0;
    for (const std::string& line : lines_of(answer.text))
      examples += line.starts_with("  precbench " + command);
    CHECK(examples >= 4);
    CHECK(contains(answer.text, "precbench " + command + " --help lists all flags.\n"));
    CHECK(output_of("(" PRECBENCH_BINARY_DIR "/precbench " + command + " 2>/dev/null)").text == "");
  }
}
