// Published figures beside measured ones: which case stands beside a claim, and what is said where none does.
#include <fstream>
#include <map>
#include <set>

#include "tools/report/published_claims.h"
#include "tools/report/sections_testing.h"
#include "tools/testing/catch.h"

using namespace precbench;

namespace {

std::string published(const std::vector<Record>& records) {
  return section_of(records, "Published beside measured");
}

/// A recipe that the GPU has no units for.
Record emulated_on_gpu(const std::string& recipe) {
  Record r = samples::gpu_record(recipe, 500);
  const GemmPath emulated{ExecutionPath::emulated, "no units for it"};
  r.support = Support{emulated, emulated, emulated, "cudnn 9.8.0"};
  r.metrics = Metrics{};
  return r;
}

/// bf16 and the recipe, over three seeds, as one machine trained them.
std::vector<Record> trained(Record (*on_machine)(const std::string&, double, int), const std::string& recipe,
                            const std::string& model) {
  std::vector<Record> records;
  for (const int seed : {1, 2, 3})
    for (const char* name : {"bf16", recipe.c_str()})
      records.push_back(with(on_machine(name, 1e-4 * seed, seed), "model", model));
  return records;
}

Record on_gpu(const std::string& recipe, double penalty, int seed) {
  return samples::gpu_record(recipe, recipe == "bf16" ? 250 : 200, penalty, seed);
}

Record on_cpu(const std::string& recipe, double penalty, int seed) {
  return samples::cpu_record(recipe, penalty, seed);
}

}  // namespace

TEST_CASE("published figures stand beside recipes whose gather varies", "[published]") {
  const std::string text = section_of(two_gathers("rowwise"), "Published beside measured");
  const auto lines = lines_with(text, "1.10x");
  INFO(text);
  REQUIRE(lines.size() == 1);
  // Of the two gathers on as many GPUs, the recipe as it is; the other ran 2.50x as fast.
  CHECK(contains(lines.front(), "1.25x"));
  CHECK_FALSE(contains(text, "2.50x"));
  // Where there is only the other, it is named.
  std::vector<Record> modified = {samples::gpu_record("bf16", 250),
                                  with(samples::gpu_record("rowwise", 100), "head", "recipe")};
  CHECK(contains(section_of(modified, "Published beside measured"), "llama3.2-1b, head recipe"));
}

TEST_CASE("a published model's nearest neighbour is one of known size", "[published]") {
  std::vector<Record> records;
  const auto add = [&](const char* model, double ms) {
    records.push_back(with(samples::gpu_record("bf16", 250), "model", model));
    records.push_back(with(samples::gpu_record("rowwise", ms), "model", model));
  };
  add("tiny", 125);
  add("mini-125m", 100);
  add("own/config.json", 50);
  add("llama3.2-1b", 200);
  const auto lines = lines_with(section_of(records, "Published beside measured"), "1.10x");
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines.front(), "model llama3-8b, here llama3.2-1b"));
}

TEST_CASE("a published figure's batch is matched too", "[published]") {
  std::vector<Record> records;
  for (const int batch : {8, 2, 1, 4})
    for (const char* recipe : {"bf16", "rowwise"})
      records.push_back(
          with(samples::gpu_record(recipe, recipe[0] == 'b' ? 250 : 250 - 10 * batch), "batch", batch));
  const std::string text = published(records);
  INFO(text);
  const auto lines = lines_with(text, "1.10x");  // published at batch 1
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines.front(), "1.04x"));
  CHECK_FALSE(contains(lines.front(), "batch 1, here"));
  // Where there is only another, that is said.
  records.resize(2);
  CHECK(contains(lines_with(published(records), "1.10x").front(), "batch 1, here 8"));
}

TEST_CASE("a loss from a GPU stands beside a claim before one from a CPU", "[published]") {
  // The CPU's model is the nearer one in size; the GPU's has none that its name says.
  std::vector<Record> records = trained(on_cpu, "tensorwise", "mini-125m");
  const std::vector<Record> gpu = trained(on_gpu, "tensorwise", "own/config.json");
  CHECK(contains(lines_with(published(records), "+6.5 nats").front(), "here mini-125m"));
  records.insert(records.end(), gpu.begin(), gpu.end());
  const std::string text = published(records);
  INFO(text);
  const auto lines = lines_with(text, "+6.5 nats");
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines.front(), "model llama3.1-8b, here own/config.json"));
}

TEST_CASE("what a GPU emulates has no counterpart in speed, and that is said", "[published]") {
  const std::string text = published({samples::gpu_record("bf16", 250), emulated_on_gpu("mxfp8")});
  INFO(text);
  const auto lines = lines_with(text, "1.22x");
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines.front(), "mxfp8"));
  CHECK(contains(lines.front(), "no counterpart"));
  CHECK(contains(lines.front(), "emulated here: it has a loss, but no speed"));
  // A CPU has no speed to compare at all, and a recipe that never ran is only counted.
  CHECK_FALSE(contains(published(trained(on_cpu, "mxfp8", "tiny")), "emulated here"));
  CHECK(lines_with(text, "fp8_flow").size() <= 1);
}

TEST_CASE("a recipe that ran on a model of another size alone has no counterpart in tokens/s",
          "[published]") {
  std::vector<Record> records;
  for (const char* model : {"llama3.2-1b", "llama3.1-8b"})
    for (const char* recipe : {"bf16", "tensorwise"})
      records.push_back(with(samples::gpu_record(recipe, recipe[0] == 'b' ? 250 : 200), "model", model));
  const std::string text = published(records);
  INFO(text);
  const auto lines = lines_with(text, "19,200");  // llm.q, 7B
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines.front(), "here llama3.1-8b"));
  records.resize(2);
  const auto without = lines_with(published(records), "19,200");
  REQUIRE(without.size() == 1);
  CHECK(contains(without.front(), "no model of about that size"));
}

TEST_CASE("memory and utilization are compared, and ranges of either precision", "[published]") {
  const std::vector<Record> records = {samples::gpu_record("bf16", 250),
                                       samples::gpu_record("tensorwise", 200)};
  const std::string text = published(records);
  INFO(text);
  const auto memory = lines_with(text, "memory over BF16's");
  REQUIRE(memory.size() == 1);
  CHECK(contains(memory.front(), "0.50x"));
  CHECK(contains(memory.front(), "0.95x"));
  const auto range = lines_with(text, "170.0 to 230.0");
  REQUIRE(range.size() == 1);
  CHECK(contains(range.front(), "bf16, tensorwise"));
  CHECK_FALSE(contains(text, "4.8%"));  // of 8B
  const auto utilization = lines_with(
      published({with(records[0], "model", "llama3.1-8b"), with(records[1], "model", "llama3.1-8b")}),
      "4.8%");
  REQUIRE(utilization.size() == 1);
  CHECK(contains(utilization.front(), "19.1% of the dense BF16 peak"));
}

TEST_CASE("a source's other statements stand where one of its figures on the matter is compared",
          "[published]") {
  const std::vector<Record> timed = {samples::gpu_record("bf16", 250),
                                     samples::gpu_record("tensorwise", 200)};
  std::vector<Record> short_runs = timed;
  for (Record& record : short_runs) record.training->loss.resize(10);
  const std::string speed = published(short_runs);
  INFO(speed);
  const auto scaling = lines_with(speed, "3.5 to 3.8x");
  REQUIRE(scaling.size() == 1);
  CHECK(contains(scaling.front(), "not compared"));
  CHECK(contains(scaling.front(), "2.9 to 3.1x"));
  CHECK(contains(speed, "513 TFLOP/s"));
  CHECK_FALSE(contains(speed, "6.25%"));  // a matter of losses, of which there are none
  CHECK_FALSE(contains(speed, "from 4 to 188 nodes"));
  CHECK(contains(published(trained(on_gpu, "tensorwise", "llama3.2-1b")), "6.25%"));
}

TEST_CASE("a figure of a mixture of experts stands beside no dense model", "[published]") {
  std::vector<Record> records = {samples::gpu_record("bf16", 250), samples::gpu_record("mxfp8", 200)};
  CHECK_FALSE(contains(published(records), "llama4-scout, here"));
  for (Record& record : records) record.moe = Shared<MoeRecord>(MoeRecord());
  const std::string text = published(records);
  INFO(text);
  CHECK(contains(text, "llama4-scout, here"));
  CHECK_FALSE(contains(text, "llama3-8b, here"));
}

TEST_CASE("each published figure has a source with its hardware, and says what it is of", "[published]") {
  std::ifstream file(PRECBENCH_SOURCE_DIR "/results/published/published.json");
  const Claim all = Claim::parse(file);
  const Claim& sources = all.at("sources");
  for (const auto& [name, source] : sources.items()) {
    INFO(name);
    CHECK_FALSE(text_in(source, "name").empty());
    CHECK_FALSE(text_in(source, "title").empty());
    CHECK_FALSE(text_in(source, "hardware").empty());
  }
  const std::map<std::string, std::set<std::string>> figures = {
      {"speedups", {"speedup"}},
      {"throughput", {"tflops_per_gpu", "tokens_per_s", "tokens_per_s_per_gpu"}},
      {"utilization", {"mfu_percent"}},
      {"memory", {"memory_ratio"}}};
  const std::set<std::string> topics = {"speed", "memory", "loss"};
  for (const char* list : {"speedups", "throughput", "utilization", "memory", "convergence", "statements"})
    for (const Claim& claim : all.at(list)) {
      INFO(claim.dump());
      CHECK(sources.contains(text_in(claim, "source")));
      if (const auto keys = figures.find(list); keys != figures.end()) {
        int said = 0;
        for (const std::string& key : keys->second) said += !claimed(claim, key, "", 2).empty();
        CHECK(said == 1);
      }
      if (std::string(list) != "statements") continue;
      for (const char* key : {"figure", "published", "setting"}) CHECK_FALSE(text_in(claim, key).empty());
      CHECK(topics.contains(text_in(claim, "topic")));
    }
}
