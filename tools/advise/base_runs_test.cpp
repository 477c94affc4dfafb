// Tests reading BF16 runs of the reader, from records and from tables of text.
#include "tools/advise/base_runs.h"

#include <fstream>

#include "kernels/base/xz_testing.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_file.h"
#include "results/record/record_samples.h"

using namespace precbench;

namespace {

std::string write(const TempDirectory& folder, const std::string& name, const std::string& text) {
  const std::string path = folder / name;
  std::ofstream(path) << text;
  return path;
}

std::string refusal(const std::string& path) {
  return refusal_of([&] { read_base_runs({path}); });
}

}  // namespace

TEST_CASE("read_base_runs: a table needs tokens and loss, and may have lr and more", "[advise]") {
  const TempDirectory folder;
  const auto commas = read_base_runs(
      {write(folder, "a.csv", "step,tokens,loss,lr\n1,1000, 9.5,1e-4\r\n2,2000,9.1,2e-4\n\n")});
  REQUIRE(commas.size() == 1);
  CHECK(commas[0].name == "a.csv");
  CHECK(commas[0].tokens == std::vector<double>{1000, 2000});
  CHECK(commas[0].loss == std::vector<double>{9.5, 9.1});
  CHECK(commas[0].rate == std::vector<double>{1e-4, 2e-4});
  const auto spaces = read_base_runs({write(folder, "b.txt", "loss  tokens\n3.5   1e9\n3.4\t2e9\n")});
  CHECK(spaces[0].tokens == std::vector<double>{1e9, 2e9});
  CHECK(spaces[0].loss == std::vector<double>{3.5, 3.4});
  CHECK(spaces[0].rate.empty());
}

TEST_CASE("read_base_runs: records give their BF16 runs that are no forks", "[advise]") {
  const TempDirectory folder;
  const std::string path = folder / "records.jsonl";
  Record fork = samples::gpu_record("bf16", 10, 0, 2);
  fork.study = StudyPlace{
      "0123456789abcdef", StudyPart::fork, 1, 100, 1, 0, {}, false, {}, false, 0.0025, 0.05, {}, {}};
  for (const Record& record : {samples::gpu_record("bf16", 10), samples::gpu_record("mxfp8", 10), fork})
    append_record(path, record);
  const auto runs = read_base_runs({path});
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].tokens.front() == 8 * 2048);
  CHECK(runs[0].tokens.size() == 100);
  CHECK(runs[0].rate.size() == 100);
  CHECK(read_base_runs({path, path}).size() == 2);
  const auto packed =
      read_base_runs({folder.write("packed.jsonl.xz", testing::packed_with_xz(file_text(path)))});
  REQUIRE(packed.size() == 1);
  CHECK(packed[0].loss == runs[0].loss);
}

TEST_CASE("read_base_runs: an imported run has the tokens of the steps that its log shows", "[advise]") {
  const TempDirectory folder;
  const std::string path = folder / "records.jsonl";
  append_record(path, samples::imported_record("bf16", 250));
  const auto runs = read_base_runs({path});
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].tokens == std::vector<double>{65536, 655360, 1310720, 1966080, 2621440, 3276800, 3932160});
}

TEST_CASE("read_base_runs: bad files are refused in one line", "[advise]") {
  const TempDirectory folder;
  CHECK(contains(refusal(folder / "none.csv"), "none.csv: no such file"));
  CHECK(contains(refusal(write(folder, "empty.csv", "")), "empty.csv: empty"));
  CHECK(contains(refusal(write(folder, "header.csv", "step,loss\n1,2\n")),
                 "needs a header line with the columns tokens and loss, and optionally lr"));
  CHECK(contains(refusal(write(folder, "words.csv", "tokens,loss\n1000,nan\n")),
                 "words.csv:2: not a number in column loss"));
  CHECK(contains(refusal(write(folder, "short.csv", "tokens,loss\n1000\n")),
                 "short.csv:2: not a number in column loss"));
  const std::string path = folder / "mxfp8.jsonl";
  append_record(path, samples::gpu_record("mxfp8", 10));
  CHECK(contains(refusal(path), "mxfp8.jsonl: no BF16 run in it"));
}
