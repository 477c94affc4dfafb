// The command `predict`: a line for each point, a last line of groups, and errors by name.
#include "bench/cli/predict_command.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

TEST_CASE("predict_published: writes a line for each point and the errors of groups", "[published]") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  const std::string points = (folder / "precbench-points-test.json").string();
  const std::string out = (folder / "precbench-predicted-test.jsonl").string();
  std::ofstream(points) << R"({"points": [
      {"id": "a", "framework": "llm.q", "model": "qwen2.5-0.5b", "gpu": "h200", "gpus": 1, "dp": 1, "micro_batch": 8,
       "global_batch": 16, "seq": 1024, "precision": "bf16", "tokens_per_s_per_gpu": 100000,
       "judged_as": ["absolute_native"]},
      {"id": "b", "model": "qwen2.5-0.5b", "gpu": "abacus", "gpus": 1, "precision": "bf16", "judged_as": ["shown"]}]})";
  CHECK(predict_published({points, out}) == 0);
  std::vector<nlohmann::json> lines;
  std::ifstream file(out);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  REQUIRE(lines.size() == 3);
  CHECK(lines[0]["judged"][0]["as"] == "absolute_native");
  CHECK(lines[0]["tokens_per_s_per_gpu"] > 0);
  CHECK(lines[1]["not_predicted"] == "no machine file of the GPU abacus");
  CHECK(lines[2]["groups"].size() == 7);
  std::filesystem::remove(points);
  std::filesystem::remove(out);
}

TEST_CASE("predict_published: refuses a file that cannot be read", "[published]") {
  CHECK(contains(refusal_of([] {
                   predict_published({"absent.json", ""});
                 }),
                 "--published: absent.json: no such file"));
}

}  // namespace
}  // namespace precbench
