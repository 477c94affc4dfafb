// Every command's help and tables fit the terminal, and use it where it is wide.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "bench/cli/cli.h"
#include "bench/cli/cli_testing.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/characters.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

const std::string kSourceFolder = PRECBENCH_SOURCE_DIR "/";

const std::vector<std::string> kHelps = {
    "--help",         "sweep --help",  "study --help",   "run --help",     "list --help",
    "report --help",  "check --help",  "help --help",    "advise --help",  "doctor --help",  "explain --help",
    "predict --help", "rates --help",  "import --help",  "law --help",     "help",         "help values",    "help status",
    "help environment", "help sweep"};

/// Commands with tables, with the widest settings that are quick.
std::vector<std::string> wide_commands() {
  return {"list recipes",
          "list models",
          "list devices",
          "list models --model deepseek-v3",
          "sweep --dry-run --model Qwen/Qwen3-8B,llama3.1-70b --recipe bf16,mxfp8,nvfp4,tensorwise_delayed_recent "
          "--seq 4096,8192 --gpus 8 --parallel fsdp --gpu h100",
          "sweep --dry-run --on h200 --model llama3.1-8b --recipe bf16,tensorwise_delayed_recent,nvfp4,blockwise "
          "--seq 8192 --batch 1,2 --gpus 4 --parallel fsdp --recompute none,attention+norm",
          "sweep --dry-run --on gb200-nvl72 --model qwen3-30b-a3b --recipe bf16,mxfp8 --seq 4096 --batch 1 --gpus 64 "
          "--parallel hsdp --shard-group 8 --ep 8",
          "predict " + kSourceFolder + "results/h200x4/fsdp-four",
          "doctor",
          "law",
          "advise --model llama3.1-8b --gpus 8 --gpu h100 --tokens 1T --price 2.5"};
}

std::vector<std::string> printed_lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::size_t widest(const std::string& text) {
  std::size_t width = 0;
  for (const std::string& line : printed_lines(text)) width = std::max(width, width_of(line));
  return width;
}

std::vector<std::string> printed_words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;)
    if (word != "\\" && word != "#") words.push_back(word);
  return words;
}

}  // namespace

TEST_CASE("help: fits 80 and 120 columns without cutting a word", "[cli][help][width]") {
  for (const std::string& command : kHelps) {
    const std::string narrow = precbench_prints(command, 80).text, wide = precbench_prints(command, 1000).text;
    INFO(command);
    CHECK(widest(narrow) <= 80);
    CHECK(widest(narrow) > 50);
    CHECK(widest(precbench_prints(command, 120).text) <= 120);
    // Names of flags may be broken at '|'; every other word stays whole.
    const std::vector<std::string> narrow_words = printed_words(narrow);
    const std::set<std::string> found(narrow_words.begin(), narrow_words.end());
    for (const std::string& word : printed_words(wide))
      if (!contains(word, "|")) {
        INFO(word);
        CHECK(found.contains(word));
      }
  }
}

TEST_CASE("tables: fit 80 columns, say what they left out, and use 200", "[cli][width]") {
  std::map<std::string, std::size_t> wide;
  for (const std::string& command : wide_commands()) {
    const Answer narrow = precbench_prints(command, 80);
    INFO(command << "\n" << narrow.text);
    CHECK(!narrow.text.empty());
    CHECK(widest(narrow.text) <= 80);
    for (const char* name : {"tensorwise_delayed_recent", "attention+norm", "blockwise", "llama3.1-70b"})
      if (contains(command, name)) CHECK(contains(narrow.text, name));  // not cut
    const Answer answer = precbench_prints(command, 200);
    CHECK(answer.status == narrow.status);
    wide[command] = widest(answer.text);
    CHECK(wide[command] <= 200);
    CHECK(!contains(answer.text, "Too wide for this screen"));
    CHECK(printed_lines(answer.text).size() <= printed_lines(narrow.text).size());
  }
  for (const auto& [command, width] : wide)
    if (!command.starts_with("predict") && command != "doctor") {
      INFO(command);
      CHECK(width > 100);
    }
}

TEST_CASE("check: its tables fit 80 columns", "[cli][width]") {
  const TempDirectory directory;
  const std::string records = kSourceFolder + "results/baseline/cpu-tiny.jsonl";
  const std::string baseline = directory.write("baseline.jsonl", file_text(records));
  const std::string check = "check " + records + " --baseline " + baseline;
  const std::string table = precbench_prints(check, 80).text;
  INFO(table);
  CHECK(contains(table, "verdict"));
  CHECK(widest(table) <= 80);
  CHECK(widest(precbench_prints(check, 200).text) > 80);
}

TEST_CASE("list models: narrow terminals lose the least important columns and say which", "[cli][width]") {
  const std::string narrow = precbench_prints("list models", 80).text;
  CHECK(contains(narrow, "Too wide for this screen: "));
  CHECK(contains(narrow, "parameters"));
  CHECK(contains(narrow, "qwen3-235b-a22b"));
  CHECK(!contains(precbench_prints("list models", 200).text, "Too wide"));
}

TEST_CASE("help: commands in examples that are broken have a backslash where they go on", "[cli][help][width]") {
  std::string joined;
  bool went_on = false;
  for (const std::string& line : printed_lines(precbench_prints("sweep --help", 80).text)) {
    for (const std::string& word : printed_words(line)) joined += " " + word;
    if (went_on) CHECK(line.starts_with("    "));
    went_on = line.ends_with(" \\");
  }
  CHECK(contains(joined,
                 " precbench sweep --model llama3.2-1b --recipe bf16,tensorwise,blockwise --seq 2048-8192*2 --batch"));
}
