// Fuzzes the regression check and its outputs with record files. An empty line separates the baseline from
// the run; without one, both are the same.
#include "tools/gate/check_command.h"

#include <cstdlib>

#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(check) {
  static const bool annotated =
      setenv("GITHUB_ACTIONS", "true", 1) == 0 && unsetenv("GITHUB_STEP_SUMMARY") == 0;
  expect(annotated);
  const std::string_view text = text_of(data, size);
  const std::size_t gap = text.find("\n\n");
  CheckOptions options;
  options.baseline = scratch().write("baseline.jsonl", std::string(text.substr(0, gap)));
  options.paths = {scratch().write("run.jsonl", std::string(gap == text.npos ? text : text.substr(gap + 2)))};
  options.numerics = true;
  options.markdown = scratch() / "check.md";
  options.junit = scratch() / "check.xml";
  options.json = scratch() / "check.json";
  taken([&] { check(options, rerun_with_all_flags); });
  return 0;
}
