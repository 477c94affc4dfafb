// precbench help: topics and the completion of bash, which must know every command and flag.
#include "bench/cli/help_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "bench/cli/cli.h"
#include "bench/cli/cli_testing.h"
#include "bench/cli/completion.h"
#include "bench/cli/help_topics.h"
#include "bench/cli/recipe_sets.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Returns the pages of the commands of this module, as in the program.
std::vector<HelpPage> pages() {
  CLI::App app("precbench: speed", "precbench");
  SweepCommand sweep;
  ListCommand list;
  HelpCommand help;
  add_sweep_command(app, sweep);
  add_list_command(app, list);
  add_help_command(app, help);
  return pages_of(app);
}

const HelpFlag& flag_of_page(const HelpPage& page, const std::string& name) {
  const auto found = std::find_if(page.flags.begin(), page.flags.end(), [&](const HelpFlag& flag) {
    return std::count(flag.names.begin(), flag.names.end(), name) > 0;
  });
  REQUIRE(found != page.flags.end());
  return *found;
}

/// Returns what bash would complete behind these words, the last of which may be empty.
std::string completed(const std::string& words, const std::string& folder = ".") {
  std::istringstream stream(words);
  std::size_t count = words.ends_with(' ') ? 1 : 0;
  for (std::string word; stream >> word;) ++count;
  const std::string last = words.ends_with(' ') ? " ''" : "";
  return output_of("cd " + folder +
                   " && bash -c 'source <(" PRECBENCH_BINARY_DIR
                   "/precbench help completion bash); COMP_WORDS=(" +
                   words + last + "); COMP_CWORD=" + std::to_string(count - 1) +
                   "; _precbench; echo \"${COMPREPLY[*]}\"'")
      .text;
}

}  // namespace

TEST_CASE("help COMMAND: what COMMAND --help prints", "[cli][help]") {
  for (const char* command : {"sweep", "study", "run", "list", "report", "check", "help"}) {
    INFO(command);
    const Answer answer = precbench_says("help " + std::string(command));
    CHECK(answer.status == 0);
    CHECK(answer.text == precbench_says(std::string(command) + " --help").text);
  }
  const std::string all = precbench_says("help").text;
  CHECK(all.starts_with(precbench_says("--help").text));
  for (const std::string& word : help_words(pages())) CHECK(contains(all, "\n  " + word));
}

TEST_CASE("help TOPIC: texts from the program's own tables", "[cli][help]") {
  const std::string values = precbench_says("help values").text;
  for (const RecipeSet& set : recipe_sets())
    CHECK(contains(values, "--recipe " + std::string(set.name) + " "));
  const std::string status = precbench_says("help status").text;
  for (const char* command : {"sweep\nExit status: 0 ", "run\nExit status: 0 ", "check\nExit status: 0 "})
    CHECK(contains(status, command));
  CHECK(contains(precbench_says("help environment").text, "PRECBENCH_PEAKS"));
  CHECK(refused("help swep") == "precbench: help: unknown topic swep; did you mean sweep?");
  CHECK(refused("help sweep study") == "precbench: help: unexpected argument study");
  CHECK(contains(refused("help xyzzy"), "help: unknown topic xyzzy; it is one of sweep, study, "));
  CHECK(refused("help completion") == "precbench: help completion: no shell is not bash");
  CHECK(refused("help man") ==
        "precbench: help: the man page is removed; precbench help COMMAND has its text");
  CHECK(contains(refused("help completion zsh"), "zsh loads bash's after autoload"));
  CHECK(contains(refused("help completion fish"), "removed; precbench help COMMAND"));
}

TEST_CASE("page_of: flags have their names, values and choices", "[cli][help]") {
  const std::vector<HelpPage> all = pages();
  REQUIRE(all.size() == 4);
  CHECK(all[0].name == "precbench");
  const HelpPage& sweep = all[1];
  CHECK(sweep.name == "sweep");
  CHECK(contains(sweep.footer.text, "Exit status: 0"));
  CHECK(sweep.footer.examples.starts_with("  # first sweep"));
  const HelpFlag& master = flag_of_page(sweep, "--master-dtype");
  CHECK(master.names == std::vector<std::string>{"--master", "--master-dtype"});
  CHECK(master.is_list());
  CHECK(master.choices() == std::vector<std::string>{"fp32", "bf16", "bf16_sr", "fp16"});
  CHECK(flag_of_page(sweep, "--dry-run").value.empty());
  CHECK(flag_of_page(sweep, "--config").value == "FILE");
  CHECK(flag_of_page(sweep, "--seq").choices().empty());
}

TEST_CASE("help completion bash: commands, flags and values", "[cli][help]") {
  CHECK(completed("precbench swe") == "sweep\n");
  CHECK(completed("precbench sweep --mod") == "--model\n");
  CHECK(completed("precbench sweep --parallel f") == "fsdp\n");
  CHECK(completed("precbench sweep --parallel= f") == "\n");  // not how bash splits it
  CHECK(completed("precbench sweep --parallel = f") == "fsdp\n");
  CHECK(completed("precbench sweep --parallel ddp,f") == "ddp,fsdp\n");
  CHECK(contains(completed("precbench sweep --recipe bf16,nvfp4_n"), "bf16,nvfp4_norht"));
  CHECK(completed("precbench sweep --model qwen3-8") == "qwen3-8b\n");
  CHECK(completed("precbench list ") == "recipes models devices\n");
  CHECK(completed("precbench check --inconclusive ") == "pass fail\n");
  CHECK(contains(completed("precbench help comp"), "completion"));
  const TempDirectory directory;
  directory.write("run.jsonl", "");
  CHECK(completed("precbench report ru", directory.path().string()) == "run.jsonl\n");
  CHECK(completed("precbench sweep --config ru", directory.path().string()) == "run.jsonl\n");
  CHECK(completed("precbench sweep --seq ") == "\n");
}

TEST_CASE("help completion: the script is valid and has every flag", "[cli][help]") {
  const TempDirectory directory;
  const Answer answer = precbench_says("help completion bash");
  CHECK(answer.status == 0);
  CHECK(output_of("bash -n " + directory.write("script", answer.text)).status == 0);
  for (const HelpPage& page : pages())
    for (const HelpFlag& flag : page.flags) CHECK(contains(answer.text, flag.names.back()));
}
