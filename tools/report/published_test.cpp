// Tests published figures next to measured ones: the chosen case, and the reason if there is none.
#include <fstream>
#include <map>
#include <set>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "tools/analysis/study_samples.h"
#include "tools/report/published_claims.h"
#include "tools/report/sections_testing.h"

using namespace precbench;

namespace {

/// Returns the section on the figures of published_fixture.json.
std::string published(const std::vector<Record>& records) {
  static const std::string kFixture = file_text(PRECBENCH_SOURCE_DIR "/tools/report/published_fixture.json");
  const RecordSet set = samples::set_of(records);
  return text_of_section(published_section(make_input(set), kFixture));
}

/// Returns a record of a recipe without native support on the GPU.
Record emulated_on_gpu(const std::string& recipe) {
  Record r = samples::gpu_record(recipe, 500);
  const GemmPath emulated{ExecutionPath::emulated, "no units for it"};
  r.support = Support{emulated, emulated, emulated, "cudnn 9.8.0"};
  r.metrics = Metrics{};
  return r;
}

/// Returns a record of an MoE model with this many billions of parameters; `cuts`: what it
/// lacks of its namesake.
Record moe_record(const std::string& recipe, double ms, const std::string& model, double billions,
                  const std::string& cuts = "") {
  Record r = with(samples::gpu_record(recipe, ms), "model", model);
  MoeRecord moe;
  moe.routing = "balanced";
  r.moe = moe;
  ParameterCounts params;
  params.total = static_cast<std::int64_t>(billions * 1e9);
  r.params = params;
  if (!cuts.empty()) r = samples::redefined(std::move(r), &DefinitionRecord::model, "/cuts", cuts);
  return r;
}

/// Returns runs of BF16 and the recipe over three seeds on one machine.
std::vector<Record> trained(Record (*on_machine)(const std::string&, double, int), const std::string& recipe,
                            const std::string& model) {
  std::vector<Record> records;
  for (const int seed : {1, 2, 3})
    for (const char* name : {"bf16", recipe.c_str()})
      records.push_back(with(on_machine(name, 1e-4 * seed, seed), "model", model));
  return records;
}

/// Returns a study that asks about the recipe, whose forks end `difference` nats above BF16's.
std::vector<Record> study_of(const std::string& recipe, double difference) {
  study_samples::Rows rows;
  rows.add_frame();
  rows.add_forks(recipe, difference, 1e-5, study_samples::Rows::ask);
  std::vector<Record> records;
  for (const LocatedRecord* row : rows.refs()) records.push_back(row->record);
  return records;
}

Record on_gpu(const std::string& recipe, double penalty, int seed) {
  return samples::gpu_record(recipe, recipe == "bf16" ? 250 : 200, penalty, seed);
}

Record on_cpu(const std::string& recipe, double penalty, int seed) {
  return samples::cpu_record(recipe, penalty, seed);
}

}  // namespace

TEST_CASE("published section: the unmodified recipe is preferred to one with another gather", "[published]") {
  const std::string text = published(two_gathers("rowwise"));
  const auto lines = lines_with(text, "1.10x");
  INFO(text);
  REQUIRE(lines.size() == 1);
  // With two gathers on the same GPU count, the unmodified recipe is chosen; the other ran 2.50x as fast.
  CHECK(contains(lines.front(), "1.25x"));
  CHECK_FALSE(contains(text, "2.50x"));
  // If only the modified recipe ran, it is named.
  std::vector<Record> modified = {samples::gpu_record("bf16", 250),
                                  with(samples::gpu_record("rowwise", 100), "head", "recipe")};
  CHECK(contains(published(modified), "llama3.2-1b, head recipe"));
}

TEST_CASE("published section: the nearest model has a known size", "[published]") {
  std::vector<Record> records;
  const auto add = [&](const char* model, double ms) {
    records.push_back(with(samples::gpu_record("bf16", 250), "model", model));
    records.push_back(with(samples::gpu_record("rowwise", ms), "model", model));
  };
  add("tiny", 125);
  add("mini-125m", 100);
  add("own/config.json", 50);
  add("llama3.2-1b", 200);
  const auto lines = lines_with(published(records), "1.10x");
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines.front(), "model llama3-8b, here llama3.2-1b"));
}

TEST_CASE("published section: batch size is matched", "[published]") {
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
  // A different batch size is reported.
  records.resize(2);
  CHECK(contains(lines_with(published(records), "1.10x").front(), "batch 1, here 8"));
}

TEST_CASE("published section: a loss from a GPU is preferred to one from a CPU", "[published]") {
  // The CPU's model is nearer in size; the size of the GPU's model is unknown.
  std::vector<Record> records = trained(on_cpu, "tensorwise", "mini-125m");
  const std::vector<Record> gpu = trained(on_gpu, "tensorwise", "own/config.json");
  CHECK(contains(lines_with(published(records), "11.5 over bf16's 5.0 nats").front(), "here mini-125m"));
  records.insert(records.end(), gpu.begin(), gpu.end());
  const std::string text = published(records);
  INFO(text);
  const auto lines = lines_with(text, "11.5 over bf16's 5.0 nats");
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines.front(), "model llama3.1-8b, here own/config.json"));
}

TEST_CASE("published section: a study card is shown next to a claim about the loss with its differences",
          "[published][study]") {
  const auto line_of = [](const std::vector<Record>& records, const char* figure) {
    for (const std::string& line : lines_with(published(records), "11.5 over bf16's 5.0 nats"))
      if (contains(line, figure)) return line;
    return std::string();
  };
  CHECK(published(study_of("blockwise", 0.0012)) == "");  // there is no claim about its loss
  std::vector<Record> records = study_of("tensorwise", 0.0012);
  const std::string alone = line_of(records, "loss of forks");
  INFO(alone);
  for (
      const char* what :
      {"equivalent for llama3.2-1b at an unknown number of tokens per parameter, +0.00120 nats [+0.00118, +0.00122]; margin 0.01051",
       "llama3.2-1b, forks of 48 steps from 3 BF16 trunks after 100 to 200 steps",
       "hardware 4x B200, here NVIDIA H200", "model llama3.1-8b, here llama3.2-1b", "batch 1, here 8",
       "weights kept in bf16, here fp32", "900 steps of training, here forks of 48 from trained BF16 states"})
    CHECK(contains(alone, what));
  CHECK(contains(line_of(study_of("tensorwise", 0.02), "loss of forks"),
                 "worse for llama3.2-1b at an unknown number of tokens per parameter, +0.02000 nats"));
  const std::string section = published(records);
  CHECK(contains(section, "a whole run, here forks of 48"));  // for a claim without a number of steps
  CHECK(contains(section, "6.25%"));                          // another statement of that source about losses
  CHECK(contains(section, "Forks begin in a trained BF16 state"));

  // A run from scratch is shown in addition.
  const std::vector<Record> scratch = trained(on_gpu, "tensorwise", "llama3.2-1b");
  records.insert(records.end(), scratch.begin(), scratch.end());
  CHECK(contains(line_of(records, "final loss"), "2.50 over bf16's 2.50: "));
  CHECK(contains(line_of(records, "loss of forks"),
                 "equivalent for llama3.2-1b at an unknown number of tokens per parameter, +0.00120 nats"));
  CHECK_FALSE(contains(published(scratch), "forks"));
}

TEST_CASE(
    "published section: of several studies the nearest card is chosen and a GPU preferred and ties go to more harm",
    "[published][study]") {
  const auto forks_of = [](std::vector<std::vector<Record>> studies) {
    std::vector<Record> records;
    for (std::size_t i = 0; i < studies.size(); ++i)
      for (Record& row : studies[i]) {
        row.study->study[0] = static_cast<char>('0' + i);
        records.push_back(row);
      }
    const auto lines = lines_with(published(records), "11.5 over bf16's 5.0 nats");
    REQUIRE(lines.size() == 1);
    return lines.front();
  };
  const auto of_model = [](std::vector<Record> rows, const char* name) {
    for (Record& row : rows)
      row = samples::redefined(std::move(row), &DefinitionRecord::model, "/name", name);
    return rows;
  };
  const auto on_a_cpu = [](std::vector<Record> rows) {
    for (Record& row : rows) row = with(row, "device", "cpu"), row.env.gpu.reset();
    return rows;
  };
  const std::vector<Record> good = study_of("tensorwise", 0.0012), bad = study_of("tensorwise", 0.02);
  CHECK(contains(forks_of({of_model(good, "36m"), bad, of_model(good, "tiny")}),
                 "worse for llama3.2-1b at an unknown number of tokens per parameter, "));
  CHECK(contains(forks_of({of_model(bad, "36m"), good, of_model(bad, "tiny")}),
                 "equivalent for llama3.2-1b at an unknown number of tokens per parameter, "));
  CHECK(contains(forks_of({on_a_cpu(good), of_model(bad, "36m")}), "here 36m"));
  CHECK(contains(forks_of({good, bad}),
                 "worse for llama3.2-1b at an unknown number of tokens per parameter, "));
  CHECK(contains(forks_of({bad, good}),
                 "worse for llama3.2-1b at an unknown number of tokens per parameter, "));
  // A recipe that could not run has no verdict.
  std::vector<Record> unsupported = study_of("tensorwise", 0);
  for (Record& row : unsupported)
    if (row.study->asked) row.status = Status::unsupported, row.training.reset();
  CHECK_FALSE(contains(published(unsupported), "loss of forks"));
}

TEST_CASE("published section: an MoE card is shown next to MoE claims only", "[published][study][moe]") {
  std::vector<Record> rows = study_of("mxfp8", 0.0012);
  CHECK(contains(published(rows), "model llama3-70b, here llama3.2-1b"));
  CHECK_FALSE(contains(published(rows), "llama4-scout"));
  for (Record& row : rows) row.moe = MoeRecord();
  CHECK(contains(published(rows), "model llama4-scout, here llama3.2-1b"));
  CHECK_FALSE(contains(published(rows), "llama3-70b"));
}

TEST_CASE("published section: a recipe emulated on a GPU has no counterpart in speed", "[published]") {
  const std::string text = published({samples::gpu_record("bf16", 250), emulated_on_gpu("mxfp8")});
  INFO(text);
  const auto lines = lines_with(text, "1.22x");
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines.front(), "mxfp8"));
  CHECK(contains(lines.front(), "no counterpart"));
  CHECK(contains(lines.front(), "emulated here: it has a loss, but no speed"));
  // A CPU has no comparable speed, and a recipe that never ran is only counted.
  CHECK_FALSE(contains(published(trained(on_cpu, "mxfp8", "tiny")), "emulated here"));
  CHECK(lines_with(text, "blockwise_pow2_flow").size() <= 1);
}

TEST_CASE("published section: tokens/s have no counterpart at another model size", "[published]") {
  std::vector<Record> records;
  for (const char* model : {"llama3.2-1b", "llama3.1-8b"})
    for (const char* recipe : {"bf16", "tensorwise"})
      records.push_back(with(samples::gpu_record(recipe, recipe[0] == 'b' ? 250 : 200), "model", model));
  const std::string text = published(records);
  INFO(text);
  const auto lines = lines_with(text, "19,200");  // qwen2.5-7b
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines.front(), "here llama3.1-8b"));
  records.resize(2);
  const auto without = lines_with(published(records), "19,200");
  REQUIRE(without.size() == 1);
  CHECK(contains(without.front(), "no model of about that size"));
}

TEST_CASE(
    "published section: partial steps and other orders of size and other GPU counts have no counterpart",
    "[published]") {
  std::vector<Record> records;
  for (const char* model : {"llama3.1-8b", "llama3.2-1b"})
    for (const char* recipe : {"bf16", "tensorwise"})
      records.push_back(with(samples::gpu_record(recipe, recipe[0] == 'b' ? 250 : 200), "model", model));
  const std::string text = published(records);
  INFO(text);
  const auto only = [](const std::string& report, const char* of, const char* figure) {
    std::vector<std::string> found;
    for (const std::string& line : lines_with(report, figure))
      if (contains(line, of)) found.push_back(line);
    REQUIRE(found.size() == 1);
    return found.front();
  };
  CHECK(contains(only(text, "Layer docs", "1.58x"), "GEMM + quantization: of less than a step"));
  // 8.75 times as large.
  CHECK(contains(only(text, "Vendor", "1.43x"), "model llama3-70b, here llama3.1-8b"));
  CHECK(contains(only(text, "Vendor", "1.53x"),
                 "llama3.1-405b: no bf16 case beside it, or none of that order of size"));
  CHECK(contains(only(text, "all GPUs", "42,000"), "65,536"));
  CHECK(contains(only(text, "all GPUs", "120,000 to 130,000"),
                 "llama3.2-1b: no model of about that size on as many GPUs"));
  for (Record& record : records) record = with(record, "gpus", 4);
  const std::string four = published(records);
  CHECK(contains(only(four, "all GPUs", "120,000 to 130,000"), "65,536"));
  CHECK(contains(only(four, "all GPUs", "42,000"), "no counterpart"));
}

TEST_CASE("published section: a claim with BF16 weights prefers a loss with BF16 weights", "[published]") {
  std::vector<Record> records = trained(on_gpu, "tensorwise", "llama3.1-8b");
  const auto line = [&] {
    const auto lines = lines_with(published(records), "11.5 over bf16's 5.0 nats");
    REQUIRE(lines.size() == 1);
    return lines.front();
  };
  CHECK(contains(line(), "weights kept in bf16, here fp32"));
  CHECK(contains(line(), "2.50 over bf16's 2.50: "));
  for (const int seed : {1, 2, 3})
    for (const char* recipe : {"bf16", "tensorwise"}) {
      const Record record = samples::gpu_record(recipe, 250, 3 + 1e-4 * seed, seed);
      records.push_back(with(with(record, "model", "llama3.1-8b"), "master", "bf16"));
    }
  CHECK(contains(line(), "5.50 over bf16's 5.50: "));
  CHECK_FALSE(contains(line(), "weights kept in"));
}

TEST_CASE("published section: memory and utilization and ranges are compared", "[published]") {
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
  CHECK_FALSE(contains(text, "4.8%"));  // published for 8B
  const auto utilization = lines_with(
      published({with(records[0], "model", "llama3.1-8b"), with(records[1], "model", "llama3.1-8b")}),
      "4.8%");
  REQUIRE(utilization.size() == 1);
  CHECK(contains(utilization.front(), "relative to a sparse peak"));
}

TEST_CASE(
    "published section: other statements of a source are shown if one of its figures on the topic is compared",
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
  CHECK(contains(speed, "its table and its text disagree"));
  CHECK_FALSE(contains(speed, "6.25%"));  // about losses, which are missing here
  CHECK_FALSE(contains(speed, "from 4 to 188 nodes"));
  CHECK(contains(published(trained(on_gpu, "tensorwise", "llama3.2-1b")), "6.25%"));
}

TEST_CASE("published section: an MoE figure is not compared with a dense model", "[published]") {
  std::vector<Record> records = {samples::gpu_record("bf16", 250), samples::gpu_record("mxfp8", 200)};
  CHECK_FALSE(contains(published(records), "llama4-scout, here"));
  for (Record& record : records) record.moe = MoeRecord();
  const std::string text = published(records);
  INFO(text);
  CHECK(contains(text, "llama4-scout, here"));
  CHECK_FALSE(contains(text, "llama3-8b, here"));
}

TEST_CASE("published section: an MoE model with fewer layers is compared in FLOP/s but not in tokens/s",
          "[published][moe]") {
  std::vector<Record> records;
  for (const char* recipe : {"bf16", "tensorwise"})
    records.push_back(with(moe_record(recipe, 200, "qwen3-30b-a3b", 4.4, "6 of 48 layers"), "layers", 6));
  const std::string text = published(records);
  INFO(text);
  for (const auto& [figure, source] : {std::pair{"277.0", "Framework A"}, {"241.0", "Framework B"}}) {
    const auto lines = lines_with(text, figure);
    REQUIRE(lines.size() == 1);
    CHECK(contains(lines.front(), source));
    CHECK(contains(lines.front(), "671.7"));
    for (const char* what :
         {"DGX H100, here NVIDIA H200", "here 1; ", "here 6 of 48 layers", "expert parallel 8, here 1"})
      CHECK(contains(lines.front(), what));
  }
  CHECK(contains(lines_with(text, "241.0").front(), "drops tokens"));
  CHECK_FALSE(contains(lines_with(text, "277.0").front(), "routing"));  // both are balanced
  CHECK(contains(lines_with(text, "12,040").front(), "no counterpart"));
  CHECK(contains(lines_with(text, "12,040").front(), "qwen3-30b-a3b: no model of about that size"));
  // The complete model is compared in tokens/s as well.
  const std::string whole = published({moe_record("bf16", 200, "qwen3-30b-a3b", 30.5)});
  CHECK(contains(lines_with(whole, "12,040").front(), "81,920"));
  CHECK_FALSE(contains(lines_with(whole, "277.0").front(), "layers"));
  Record learned = moe_record("bf16", 200, "qwen3-30b-a3b", 30.5);
  learned.moe->routing = "learned";
  CHECK(contains(lines_with(published({learned}), "277.0").front(), "routing balanced, here learned"));
  // A dense model with fewer layers no longer has the size in its name.
  const Record dense = with(samples::gpu_record("tensorwise", 200), "model", "llama3-8b");
  CHECK(contains(lines_with(published({dense}), "10,938").front(), "81,920"));
  CHECK_FALSE(contains(published({with(dense, "layers", 2)}), "81,920"));
}

TEST_CASE(
    "published section: blockwise_pow2_flow is compared by speedup and tokens/s and memory and expert ranks",
    "[published][moe]") {
  const std::string cuts = "plain attention instead of latent attention (MLA), no YaRN";
  std::vector<Record> records;
  for (const char* recipe : {"bf16", "blockwise", "blockwise_pow2"})
    records.push_back(moe_record(recipe, 250, "deepseek-v3-gqa", 680, cuts));
  records.push_back(with(moe_record("blockwise_pow2", 200, "deepseek-v3-gqa", 680, cuts), "flow", "on"));
  for (Record& record : records) record.moe->ep = 16;
  const std::string text = published(records);
  INFO(text);
  const auto speedup = lines_with(text, "1.16x");
  REQUIRE(speedup.size() == 1);
  CHECK(contains(speedup.front(), "blockwise_pow2_flow"));
  CHECK(contains(speedup.front(), "1.25x"));  // only from the row with --flow on
  CHECK(contains(speedup.front(), "flow on"));
  CHECK(contains(speedup.front(), "here " + cuts));
  CHECK(contains(speedup.front(), "expert parallel 32, here 16"));
  // Tokens/s at equal expert-parallel ranks do not list them as a difference.
  for (const auto& [figure, ranks] : {std::pair{"1,012", ""}, {"779.0", "expert parallel 32, here 16"}}) {
    const auto lines = lines_with(text, figure);
    REQUIRE(lines.size() == 1);
    CHECK(contains(lines.front(), "81,920"));
    CHECK(contains(lines.front(), "expert parallel") == (std::string(ranks) != ""));
    CHECK(contains(lines.front(), ranks));
  }
  CHECK_FALSE(lines_with(text, "49.0 GB").empty());
  CHECK(contains(text, "12 to 2"));
  CHECK(contains(text, "73 to 56 GB"));
  // Without that row its figures have no counterpart, not even another recipe.
  records.pop_back();
  CHECK_FALSE(contains(published(records), "blockwise_pow2_flow  "));
}

TEST_CASE("published section: MoE figures without counterpart share a line and are omitted for dense models",
          "[published][moe]") {
  const std::string text = published({moe_record("bf16", 250, "moe-4b-a1b", 3.7)});
  INFO(text);
  const auto lines = lines_with(text, "1,109, 939.0");
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines.front(), "deepseek-v3: no model of about that size"));
  CHECK_FALSE(contains(text, "19,200"));
  CHECK_FALSE(contains(published({samples::gpu_record("bf16", 250)}), "1,109"));
}

TEST_CASE("published section: a two-layer Scout model is compared with ours and emulated MXFP8 with nothing",
          "[published][moe]") {
  const std::string cuts = "text alone, no QK-norm; 2 of 48 layers";
  Record scout = moe_record("bf16", 250, "llama4-scout-gqa", 6.5, cuts);
  scout = samples::redefined(with(scout, "layers", 2), &DefinitionRecord::model, "/layers", 2);
  Record emulated = emulated_on_gpu("mxfp8");
  emulated.moe = scout.moe, emulated.params = scout.params;
  const std::string text = published({scout, emulated});
  INFO(text);
  const auto lines = lines_with(text, "49,381");
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines.front(), "65,536"));
  CHECK(contains(lines.front(), "here text alone, no QK-norm;"));
  CHECK_FALSE(contains(lines.front(), "2 of 48 layers"));  // theirs has two layers as well
  CHECK(contains(lines_with(text, "6,169").front(), "no model of about that size"));
  for (const char* figure : {"1.33x", "70,747"})
    for (const std::string& line : lines_with(text, figure)) {
      INFO(line);
      CHECK(contains(line, contains(line, "one layer") ? "of less than a step" : "emulated here"));
    }
  CHECK(lines_with(text, "70,747").size() == 1);
}

TEST_CASE("published.json: throughput with a known setting is in points.json", "[published]") {
  std::ifstream file(PRECBENCH_SOURCE_DIR "/results/published/published.json");
  for (const Claim& claim : Claim::parse(file).at("throughput")) {
    INFO(claim.dump());
    const bool said = number_in(claim, "tokens_per_s") || number_in(claim, "tokens_per_s_per_gpu");
    const bool set = number_in(claim, "gpus") && number_in(claim, "seq") && number_in(claim, "batch");
    CHECK_FALSE((said && set && recipes_in(claim).size() == 1));
  }
}

TEST_CASE("published.json: every source has name and title and hardware and every claim has a figure",
          "[published]") {
  std::ifstream file(PRECBENCH_SOURCE_DIR "/results/published/published.json");
  const Claim all = Claim::parse(file);
  const Claim& sources = all.at("sources");
  for (const auto& [name, source] : sources.items()) {
    INFO(name);
    CHECK_FALSE(text_in(source, "name").empty());
    CHECK_FALSE(text_in(source, "title").empty());
    CHECK(text_in(source, "url").starts_with("https://"));
    CHECK_FALSE(text_in(source, "hardware").empty());
  }
  const std::map<std::string, std::set<std::string>> figures = {
      {"speedups", {"speedup"}},
      {"throughput", {"tflops_per_gpu", "tokens_per_s", "tokens_per_s_per_gpu", "peak_gb"}},
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
        CHECK(said >= 1);  // of a single run
      }
      if (std::string(list) != "statements") continue;
      for (const char* key : {"figure", "published", "setting"}) CHECK_FALSE(text_in(claim, key).empty());
      CHECK(topics.contains(text_in(claim, "topic")));
    }
}
