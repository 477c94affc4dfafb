// Status lines fit a terminal, and clearing removes as many as are shown.
#include "bench/sweep/status_lines.h"

#include <algorithm>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "results/record/characters.h"

namespace precbench {
namespace {

TEST_CASE("StatusLines: a long label is shortened and the time left is kept", "[status_lines]") {
  StatusLines lines;
  const std::string label =
      "[3/8] llama3.1-8b tensorwise seq=8192 batch=16 gpus=8 parallel=fsdp gather=fp8 ...";
  const std::string text = lines.show({{label, ", about 2 h 05 m left"}}, 80);
  CHECK(width_of(text) == 79);
  CHECK(text.rfind("[3/8] llama3.1-8b tensorwise seq=8192", 0) == 0);
  CHECK(contains(text, "..., about 2 h 05 m left"));
  CHECK(StatusLines().show({{"short", ", tail"}}, 80) == "short, tail");
  CHECK(StatusLines().show({{"a\x1b[2Jb\n", ""}}, 80).find_first_of("\x1b\n") == std::string::npos);
}

TEST_CASE("StatusLines: clearing moves up over all lines but the first and happens once", "[status_lines]") {
  StatusLines lines;
  CHECK(lines.clear().empty());
  CHECK(lines.show({{"a"}, {"b"}, {"c", "d"}}, 80) == "a\nb\ncd");
  CHECK(lines.clear() == "\r\033[K\033[A\033[K\033[A\033[K");
  CHECK(lines.clear().empty());
  CHECK(lines.show({{"a"}, {"b"}}, 80) == "a\nb");
  CHECK(lines.show({{"c"}}, 80) == "\r\033[K\033[A\033[Kc");  // replaces both
  CHECK(lines.clear() == "\r\033[K");
}

TEST_CASE("StatusLines: of many cases ten lines are shown with the number of the others", "[status_lines]") {
  StatusLines lines;
  const std::string text = lines.show(std::vector<StatusLine>(64, {"case", ""}), 80);
  CHECK(std::count(text.begin(), text.end(), '\n') == 9);
  CHECK(contains(text, "\n... and 55 more"));
}

}  // namespace
}  // namespace precbench
