// Words that a shell must read back unchanged.
#include "results/record/shell.h"

#include <string>
#include <vector>

#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "results/record/printable.h"

using namespace precbench;

TEST_CASE("shell_quoted: plain words are unchanged and others are quoted", "[shell]") {
  CHECK(shell_quoted("out/run-1.jsonl") == "out/run-1.jsonl");
  CHECK(shell_quoted("out/my run") == "'out/my run'");
  CHECK(shell_quoted("it's") == "'it'\\''s'");
  CHECK(shell_quoted("") == "''");
  CHECK(shell_quoted("a\nb") == "$'a\\012b'");
}

TEST_CASE("shell_quoted: bash reads every word back and printable leaves it unchanged", "[shell]") {
  if (output_of("bash -c true").status != 0) {
    WARN("skipped: no bash here");
    return;
  }
  const std::vector<std::string> words = {
      "plain",     "two words", "it's",      "\"$HOME\"",  "`id`",      "a\tb\nc", "\033[31mred",
      "\xff\xfe" "1", "##[error]", "::error::", "x ::set 12", "a\\b\0337", "Ärger",   "\u200b7",
      "~",         "*",         "-",         "--out",      "a;b&c|d",   "!!",      "{a,b}"};
  for (const std::string& word : words) {
    const std::string quoted = shell_quoted(word);
    INFO(quoted);
    CHECK(printable("cmd " + quoted) == "cmd " + quoted);
    std::string script = "printf %s " + quoted, outer = "bash -c '";
    for (const char c : script) outer += c == '\'' ? "'\\''" : std::string(1, c);
    CHECK(output_of(outer + "'").text == word);
  }
}

TEST_CASE("shell_path: a name that looks like a flag gets ./ in front", "[shell]") {
  CHECK(shell_path("-o") == "./-o");
  CHECK(shell_path("-") == "./-");
  CHECK(shell_path("out/-o") == "out/-o");
  CHECK(shell_path("-a b") == "'./-a b'");
}
