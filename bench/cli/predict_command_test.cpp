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

TEST_CASE("predict: writes a line for each point and the errors of groups", "[published]") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  const std::string points = (folder / "precbench-points-test.json").string();
  const std::string out = (folder / "precbench-predicted-test.jsonl").string();
  std::ofstream(points) << R"({"points": [
      {"id": "a", "framework": "llm.q", "model": "qwen2.5-0.5b", "gpu": "h200", "gpus": 1, "dp": 1, "micro_batch": 8,
       "global_batch": 16, "seq": 1024, "precision": "bf16", "tokens_per_s_per_gpu": 100000,
       "judged_as": ["absolute_native"]},
      {"id": "b", "model": "qwen2.5-0.5b", "gpu": "abacus", "gpus": 1, "precision": "bf16", "judged_as": ["shown"]}]})";
  CHECK(predict({points, {}, out}) == 0);
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

TEST_CASE("predict: refuses a file that cannot be read", "[published]") {
  CHECK(contains(refusal_of([] {
                   predict({"absent.json", {}, ""});
                 }),
                 "--published: absent.json: no such file"));
}

TEST_CASE("predict: compares measured steps with predictions from other models and recipes", "[published]") {
  const std::string out = (std::filesystem::temp_directory_path() / "precbench-own-test.jsonl").string();
  const std::string records = PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl";
  CHECK(predict({"", {records}, out}) == 0);
  std::vector<nlohmann::json> lines;
  std::ifstream file(out);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  REQUIRE(lines.size() > 35);
  CHECK(lines[0]["predicted_ms"] > lines[0]["low_ms"]);
  CHECK(lines[0]["predicted_ms"] != lines[0]["measured_ms"]);
  const auto& group = lines.back()["groups"].at(0);
  CHECK(group["steps"] == lines.size() - 1);
  CHECK(group["median"] < 0.03);
  std::filesystem::remove(out);
}

TEST_CASE("predict: records without a step to predict give reasons and an output without steps",
          "[published]") {
  const std::string out = (std::filesystem::temp_directory_path() / "precbench-none-test.jsonl").string();
  CHECK(predict({"", {PRECBENCH_SOURCE_DIR "/results/baseline/cpu-tiny.jsonl"}, out}) == 0);
  std::ifstream file(out);
  std::string line, more;
  REQUIRE(std::getline(file, line));
  CHECK(nlohmann::json::parse(line)["groups"].empty());
  CHECK(!std::getline(file, more));
  std::filesystem::remove(out);
}

TEST_CASE("predict: takes points or records and not both or neither", "[published]") {
  for (const PredictCommand& command : {PredictCommand{}, PredictCommand{"a.json", {"b.jsonl"}, ""}})
    CHECK(contains(refusal_of([&] { predict(command); }), "takes either --published FILE or record files"));
}

}  // namespace
}  // namespace precbench
