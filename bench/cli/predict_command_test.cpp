// The command `predict`: a line for each point, a last line of groups, and errors by name.
#include "bench/cli/predict_command.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/cli/cli_testing.h"
#include "kernels/base/errors.h"
#include "kernels/base/xz_testing.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/line_reader.h"
#include "results/record/record_line.h"

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
  CHECK(lines[2]["groups"].size() == 10);
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
  const std::string records = PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl.xz";
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

constexpr const char* kEvil = "x\x1b[2J\x1b]0;pwn\x07\u202e";

/// Returns a record of an H200.
nlohmann::json one_record() {
  LineReader lines(PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl.xz", kRecordLimits.bytes);
  REQUIRE(lines.next());
  return nlohmann::json::parse(lines.line());
}

/// Returns the same on a GPU of another name, as a line.
std::string record_on(const std::string& gpu) {
  nlohmann::json record = one_record();
  record["env"]["gpu"]["name"] = gpu;
  return record.dump() + "\n";
}

bool acts_on_terminal(const std::string& text) {
  return text.find('\x1b') != std::string::npos || text.find('\x07') != std::string::npos ||
         text.find("\u202e") != std::string::npos;
}

TEST_CASE("predict and rates: text of records is printable and damaged lines are named", "[published]") {
  const TempDirectory folder;
  const std::string records = folder.write("r.jsonl", record_on(kEvil) + "{\"half");
  const Answer predicted = testing::precbench_says("predict " + records);
  CHECK(predicted.status == 0);
  CHECK(contains(predicted.text, records + ":2: half-written last line, left out\n"));
  CHECK(contains(predicted.text, "1 not: no rates of x [2J"));
  const Answer rates = testing::precbench_says("rates " + records + " -o " + (folder / "rates"));
  CHECK(rates.status == 1);
  CHECK(contains(rates.text, records + ":2: half-written last line, left out\n"));
  CHECK(contains(rates.text, ": no machine file, so no peaks\n"));
  CHECK(contains(rates.text, "precbench: rates: nothing was written: no record gives a rate\n"));
  CHECK_FALSE(acts_on_terminal(predicted.text + rates.text));
}

TEST_CASE("predict and rates: step times of older records are doubted by their samples", "[published]") {
  const TempDirectory folder;
  nlohmann::json record = one_record();
  bool longer = false;
  for (auto& sample : record["timing"]["samples_ms"])
    sample = sample.get<double>() * ((longer = !longer) ? 1.2 : 0.8);
  const std::string records = folder.write("r.jsonl", record.dump() + "\n");
  for (const std::string& command :
       {"predict " + records, "rates " + records + " -o " + (folder / "rates")}) {
    INFO(command);
    CHECK(contains(testing::precbench_says(command).text, "1 of 1 record: step times are noisy: "));
  }
}

TEST_CASE("predict --stacks: needs points and records, and writes factors that can be read",
          "[published][stack]") {
  const TempDirectory folder;
  const std::string out = folder / "stacks.json";
  CHECK(contains(testing::precbench_says("predict --stacks --published x.json").text,
                 "--stacks: takes both --published FILE and record files"));
  const std::string points = folder.write("points.json", R"({"points": []})");
  const Answer answer =
      testing::precbench_says("predict --stacks --published " + points +
                              " " PRECBENCH_SOURCE_DIR "/results/h100x4/fsdp-four --out " + out);
  CHECK(answer.status == 0);
  CHECK(contains(answer.text, "2 comparisons"));
  std::ifstream file(out);
  const nlohmann::json json = nlohmann::json::parse(file);
  CHECK(json["evidence"].size() == 2);
  CHECK(json["spreads"]["mean"] == 1.0);
}

TEST_CASE("rates: records of the CPU are counted", "[published]") {
  const TempDirectory folder;
  const Answer answer = testing::precbench_says(
      "rates " PRECBENCH_SOURCE_DIR "/results/baseline/cpu-tiny.jsonl -o " + (folder / "rates"));
  CHECK(answer.status == 1);
  CHECK(contains(answer.text, "skipped: not of a GPU\n"));
}

TEST_CASE("predict: an overlong name takes one short line", "[published]") {
  const TempDirectory folder;
  const Answer answer =
      testing::precbench_says("predict " + folder.write("r.jsonl", record_on(std::string(100'000, 'g'))));
  CHECK(answer.status == 0);
  CHECK(answer.text.size() < 6000);
}

TEST_CASE("predict: text of published points is printable", "[published]") {
  const TempDirectory folder;
  nlohmann::json point = {{"id", kEvil},
                          {"framework", "llm.q"},
                          {"model", "qwen2.5-0.5b"},
                          {"gpu", "h200"},
                          {"gpus", 1},
                          {"dp", 1},
                          {"micro_batch", 8},
                          {"global_batch", 16},
                          {"seq", 1024},
                          {"precision", "bf16"},
                          {"tokens_per_s_per_gpu", 100000},
                          {"judged_as", {"absolute_native"}}};
  nlohmann::json points = {{"points", {point}}};
  for (const char* key : {"gpu", "model", "precision"}) {
    point["id"] = key, point[key] = kEvil;
    points["points"].push_back(point);
  }
  const Answer answer =
      testing::precbench_says("predict --published " + folder.write("points.json", points.dump()));
  CHECK(answer.status == 0);
  CHECK(contains(answer.text, "4 points, 1 predicted\n"));
  CHECK_FALSE(acts_on_terminal(answer.text));
  points["points"] = {point};  // of which nothing is predicted
  const Answer none = testing::precbench_says("predict --published " + folder.write("none.json", points.dump()));
  CHECK(contains(none.text, "1 point, 0 predicted\n"));
  CHECK(contains(none.text, "no published value is judged\n"));
}

TEST_CASE("predict: numbers that cannot be are refused with their range", "[published]") {
  const TempDirectory folder;
  for (const char* file : {"many-groups", "many-sequences"}) {
    const std::string points = std::string(PRECBENCH_SOURCE_DIR "/tools/fuzz/corpus/published/") + file;
    const std::string line = testing::refused("predict --published " + points);
    CHECK(line.starts_with("precbench: --published: " + points + ": mb-2608-qwen3-235b"));
    CHECK(contains(line, "is not a whole number from 1 to "));
  }
}

TEST_CASE("dry run: names of files are printable", "[published]") {
  const TempDirectory folder;
  const std::string model = folder.write(std::string(kEvil) + ".json",
                                         R"({"layers": 2, "width": 64, "ffn": 64, "heads": 4, "vocab": 64})");
  for (const char* on : {"", " --on h200 --device cuda"}) {
    const Answer answer =
        testing::precbench_says("sweep --dry-run --recipe bf16 --seq 64 --batch 1 --model '" + model +
                                "' --out " + (folder / "out") + on);
    CHECK(answer.status == 0);
    CHECK_FALSE(acts_on_terminal(answer.text));
  }
}

TEST_CASE(
    "commands that read records read packed ones, and refuse damaged and otherwise compressed ones by name",
    "[published]") {
  const std::string file = PRECBENCH_SOURCE_DIR "/results/h200/lora-smollm2.jsonl.xz";
  const std::string baseline = PRECBENCH_SOURCE_DIR "/results/baseline/cpu-tiny.jsonl";
  const TempDirectory folder;
  const std::string records = file_text(baseline), copy = folder.write("plain/run.jsonl", records),
                    packed = folder.write("run.jsonl.xz", testing::packed_with_xz(records));
  const auto says = [](const std::string& command) {
    const Answer answer = testing::precbench_says(command);
    INFO(command << '\n' << answer.text);
    CHECK(answer.status == 0);
    return answer.text;
  };
  const auto same = [&](const std::string& command) {
    // Names of files stand in the output.
    std::string plain = says(fmt::format(fmt::runtime(command), copy)),
                unpacked = says(fmt::format(fmt::runtime(command), packed));
    for (auto* text : {&plain, &unpacked})
      for (const std::string& name : {copy, packed})
        for (std::size_t at; (at = text->find(name)) != std::string::npos;)
          text->replace(at, name.size(), "RECORDS");
    CHECK(plain == unpacked);
  };
  same("report --format md {}");
  same("check --baseline " + baseline + " {} --tokens-per-s off");
  same("check --baseline {} " + baseline + " --tokens-per-s off");
  same("predict {}");
  same("report --format csv - <{}");
  // Rates say why records were skipped.
  CHECK(contains(testing::precbench_says("rates " + file + " -o " + (folder / "rates")).text,
                 "records skipped: of a study"));
  says("advise --model smollm2-135m --gpu h200 --records " + file);
  CHECK(contains(testing::refused("check --accept --baseline " + packed + " " + baseline),
                 "unpack it first: xz -d " + packed));

  const std::string whole = file_text(packed),
                    cut = folder.write("cut.jsonl.xz", whole.substr(0, whole.size() / 2)),
                    gzip = folder.write("r.jsonl.gz", "\x1F\x8B...");
  for (const std::string command :
       {"predict ", "rates ", "report ", "advise --model tiny --gpu h200 --records "}) {
    CHECK(contains(testing::refused(command + cut), cut + ": truncated xz data"));
    CHECK(contains(testing::refused(command + gzip),
                   "unpack it on the way: gzip -dc " + gzip + " | precbench "));
  }
  CHECK(contains(testing::refused("check --baseline " + baseline + " " + cut), cut + ": truncated xz data"));
  CHECK(contains(testing::refused("check --baseline " + baseline + " " + gzip),
                 "| precbench check --baseline FILE -"));
  CHECK(contains(testing::refused("check --baseline " + cut + " " + baseline), cut + ": truncated xz data"));
  CHECK(contains(testing::refused("check --baseline " + gzip + " " + baseline),
                 "| precbench check --baseline - RUN"));
}

TEST_CASE("predict: takes points or records and not both or neither", "[published]") {
  for (const PredictCommand& command : {PredictCommand{}, PredictCommand{"a.json", {"b.jsonl"}, ""}})
    CHECK(contains(refusal_of([&] { predict(command); }), "takes either --published FILE or record files"));
}

}  // namespace
}  // namespace precbench
