// Whole cases on the CPU device: the record of a case that succeeds, and of one that fails.
#include "bench/measure/session.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>

#include "bench/case/case_testing.h"
#include "bench/measure/session_testing.h"
#include "bench/step/delayed_testing.h"
#include "kernels/numerics/recipe.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

std::set<std::string> roles_of(const Record& record) {
  std::set<std::string> roles;
  for (const QuantizationStats& stats : record.quantization) roles.insert(stats.role);
  return roles;
}

/// Returns every operand of every linear layer in the direction of each GEMM that quantizes it. Excludes
/// weights that are kept in FP8, because there is no BF16 value to compare with.
std::set<std::string> expected_roles(const Recipe& recipe) {
  const std::pair<const char*, QuantFormat> operands[] = {
      {"x rows", recipe.fprop.a}, {"x columns", recipe.wgrad.b},  {"dy rows", recipe.dgrad.a},
      {"w rows", recipe.fprop.b}, {"dy columns", recipe.wgrad.a}, {"w columns", recipe.dgrad.b}};
  std::set<std::string> roles;
  for (const char* linear : {"qkv", "o", "gate_up", "down"})
    for (const auto& [operand, format] : operands)
      if (format.quantized() && !(*operand == 'w' && recipe.optimizer.weights == "e4m3"))
        roles.insert(fmt::format("{}.{}", linear, operand));
  return roles;
}

}  // namespace

TEST_CASE("run_case: every recipe trains and has a complete record", "[session]") {
  const TempDirectory directory;
  std::string pangrams;
  while (pangrams.size() < 4000) pangrams += "the quick brown fox jumps over the lazy dog. ";
  const std::string text = directory.write("pangrams.txt", pangrams);
  double bf16_loss = 0;
  for (const Recipe& recipe : builtin_recipes()) {  // BF16 is the first
    INFO(recipe.name);
    Case c = tiny_case();
    c.recipe = recipe.name;
    c.data = text;
    const Record record = run_case(validate(c));
    check_complete(record, c);
    const std::vector<double>& loss = record.training->loss;
    CHECK(loss.back() < loss.front() - 2);  // from 256 letters to a few frequent ones
    // Recipes follow BF16; measured within 0.008.
    if (!recipe.quantized()) bf16_loss = loss.back();
    CHECK(std::fabs(loss.back() - bf16_loss) < 0.02);
    CHECK(record.warnings == std::vector<std::string>{});
    CHECK(record.id == validate(c).id);
    // Emulated recipes have no speed.
    CHECK(record.metrics->tokens_per_s.has_value() == !recipe.quantized());
    CHECK(roles_of(record) == expected_roles(recipe));
    CHECK(record.training->converted_layers.empty() == !recipe.quantized());
    CHECK((record.support->path() == ExecutionPath::native) == !recipe.quantized());
    for (const QuantizationStats& stats : record.quantization) {
      INFO(stats.role << " " << stats.format);
      // FP8 keeps 2 or 3 mantissa bits: 25 to 32 dB. Row and block scales lose nothing to the range.
      REQUIRE(stats.sqnr_db.has_value());
      CHECK(*stats.sqnr_db > (stats.format.rfind("e5m2", 0) == 0 ? 18 : 25));
      CHECK(*stats.sqnr_db < 40);
    }
  }
}

TEST_CASE("run_case: NVFP4 trains except in the last blocks and late steps and repeats its random numbers",
          "[session]") {
  const TempDirectory directory;
  std::string pangrams;
  while (pangrams.size() < 4000) pangrams += "the quick brown fox jumps over the lazy dog. ";
  Case c = tiny_case();
  c.data = directory.write("pangrams.txt", pangrams);
  c.recipe = "nvfp4";
  c.switch_recipe = "none";
  const Record record = run_case(validate(c));
  check_complete(record, c);
  const std::vector<double>& loss = record.training->loss;
  CHECK(loss.back() < loss.front() - 2);
  CHECK(run_case(validate(c)).training->loss == loss);
  CHECK(roles_of(record) == expected_roles(find_recipe("nvfp4")));
  CHECK(record.support->path() == ExecutionPath::emulated);
  for (const QuantizationStats& stats : record.quantization) {
    INFO(stats.role << " " << stats.format);
    REQUIRE(stats.sqnr_db.has_value());
    // Stochastic rounding of normal values gives 17.3 dB, rounding to nearest 20.5; the transform of nearly
    // constant columns leaves one large value of 16, which gives 27.
    CHECK(*stats.sqnr_db > 14);
    CHECK(*stats.sqnr_db < 32);
  }
  // Random numbers depend on step and seed; rounding to nearest gives another run.
  Case nearest = c;
  nearest.recipe = "nvfp4_rne";
  CHECK(run_case(validate(nearest)).training->loss != loss);

  c.switch_recipe = "";
  const Record switched = run_case(validate(c));
  check_complete(switched, c);
  CHECK(switched.training->converted_layers ==
        std::vector<std::string>{"layers.0-2.{qkv,o,gate_up,down}", "from step 7 bf16: none"});
  // Equal until the switch.
  CHECK(std::equal(loss.begin(), loss.begin() + 7, switched.training->loss.begin()));
}

TEST_CASE("run_case: the collectives of delayed scaling are counted for a step with a history",
          "[session][delayed]") {
  struct Setting {
    const char *parallel, *gather;
    nlohmann::json history;
    std::int64_t accumulation;
    std::int64_t maxima;  ///< all_reduce_max calls per step, each for all amaxes
  };
  const nlohmann::json micro = {{"update", "micro"}}, apart = {{"reduce", false}};
  for (const auto& [parallel, gather, history, accumulation, expected] :
       {Setting{"ddp", "bf16", {}, 1, 1}, Setting{"fsdp", "fp8", {}, 1, 1}, Setting{"ddp", "bf16", {}, 2, 1},
        Setting{"ddp", "bf16", micro, 2, 2}, Setting{"fsdp", "fp8", micro, 3, 3},
        Setting{"ddp", "bf16", apart, 2, 0}}) {
    INFO(parallel << " " << gather << " " << history << " " << accumulation);
    const TempDirectory directory;
    Case c = tiny_case();
    c.recipe = "tensorwise_delayed";
    if (!history.empty())
      c.recipe = directory.write("mine.json", testing::delayed::with_history(c.recipe, history).dump());
    c.gpus = 2;
    c.parallel = parallel;
    c.gather = gather;
    c.accumulation = accumulation;
    c.steps = 3;
    const Record record = run_case(validate(c));
    check_complete(record, c);
    REQUIRE(record.communication.has_value());
    CHECK(record.communication->wire_bytes == record.communication->predicted_wire_bytes);
    std::int64_t maxima = 0;
    for (const CollectiveRecord& kind : record.communication->collectives)
      if (kind.name == "all_reduce_max") maxima = kind.calls;
    CHECK(maxima == expected);
  }
}

TEST_CASE("run_case: FP8 gradients send the predicted bytes and less than FP32 ones", "[session][delayed]") {
  for (const char* recipe : {"msamp_o1", "msamp_o3"})
    for (const char* parallel : {"ddp", "fsdp"})
      for (const std::int64_t steps : {3, 18}) {  // with current scales only, and past them
        INFO(recipe << " " << parallel << " " << steps);
        Case c = tiny_case();
        c.batch = 1;
        c.recipe = recipe;
        c.gpus = 2;
        c.parallel = parallel;
        c.steps = steps;
        const Record record = run_case(validate(c));
        check_complete(record, c);
        REQUIRE(record.communication.has_value());
        CHECK(record.communication->wire_bytes == record.communication->predicted_wire_bytes);
        double exchanged = 0, maxima = 0;
        for (const CollectiveRecord& kind : record.communication->collectives) {
          if (kind.name == "all_to_all") exchanged = kind.wire_bytes;
          if (kind.name == "all_reduce_max") maxima = static_cast<double>(kind.calls);
        }
        // One byte for half of all elements, plus the padding of parts.
        const auto half = static_cast<double>(parameter_count(validate(c).model)) / 2;
        CHECK(exchanged >= half);
        CHECK(exchanged <= half * 1.02);
        CHECK(maxima > 2 * 5);  // of every unit's gradient, as it is sent and as it is kept
      }
}

TEST_CASE("run_case: several ranks leave one record with their collectives", "[session]") {
  struct Setting {
    std::int64_t gpus, group;  ///< ranks that share the model
    const char *parallel, *gather;
  };
  std::map<std::string, double> gathered;  // bytes on the wire
  // Three ranks divide few buffers evenly; shared amaxes are small buffers.
  for (const auto& [gpus, group, parallel, gather] : {Setting{2, 1, "ddp", "bf16"},
                                                      {3, 1, "ddp", "bf16"},
                                                      {2, 2, "fsdp", "bf16"},
                                                      {2, 2, "fsdp", "fp8"},
                                                      {4, 2, "hsdp", "bf16"},
                                                      {6, 3, "hsdp", "bf16"}}) {
    INFO(gpus << " ranks, " << parallel << " in groups of " << group << ", gather " << gather);
    Case c = tiny_case();
    c.recipe = "tensorwise";
    c.gpus = gpus;
    c.parallel = parallel;
    c.shard_group = c.parallel == "hsdp" ? group : 1;
    c.gather = gather;
    c.reduce_amax = gpus % 3 == 0 ? "on" : "off";
    c.accumulation = 2;
    c.steps = 3;
    const Record record = run_case(validate(c));
    check_complete(record, c);
    const bool sharded = c.parallel != "ddp";
    CHECK(record.breakdown->communication_ms > 0);
    CHECK((record.memory->measured->communication > 0) == sharded);

    REQUIRE(record.communication.has_value());
    const Communication& communication = *record.communication;
    CHECK(communication.backend == "local");
    CHECK(communication.wire_bytes == communication.predicted_wire_bytes);
    std::map<std::string, CollectiveRecord> kinds;
    double sum = 0;
    for (const CollectiveRecord& kind : communication.collectives) {
      kinds[kind.name] = kind;
      sum += kind.wire_bytes;
      CHECK(!kind.bus_gb_per_s.has_value());  // threads have no bus
    }
    CHECK(sum == communication.wire_bytes);
    CHECK(kinds.count("all_reduce") == 1);
    CHECK(kinds.count("all_gather") == sharded);
    CHECK(kinds.count("reduce_scatter") == sharded);
    if (!sharded) continue;
    // Gradients in FP32, of every unit once per micro-step, between the ranks of a group.
    const double parameters = static_cast<double>(parameter_count(find_model(c.model)));
    const double sent = 2 * 4 * parameters * static_cast<double>(group - 1) / static_cast<double>(group);
    const CollectiveRecord& reduced = kinds["reduce_scatter"];
    CHECK(reduced.wire_bytes >= sent);
    CHECK(reduced.wire_bytes < sent * 1.01);  // shards are padded
    if (group == 2) gathered[c.parallel + c.gather] = kinds["all_gather"].wire_bytes;
  }
  CHECK(gathered["hsdpbf16"] == gathered["fsdpbf16"]);  // both in groups of two
  CHECK(gathered["fsdpfp8"] < 0.7 * gathered["fsdpbf16"]);
  CHECK(gathered["fsdpfp8"] > 0.5 * gathered["fsdpbf16"]);
}

TEST_CASE("run_case: the stop rules end all ranks at the same step", "[session]") {
  Case c = testing::with_flags(tiny_case(), "--steps auto --gpus 2 --time-limit 0.2");
  const Record record = run_case(validate(c));
  CHECK(record.status == Status::ok);
  REQUIRE(record.timing.has_value());
  CHECK(record.timing->stop_reason != StopReason::fixed_steps);
  CHECK(record.timing->warmup + record.timing->samples_ms.size() == record.training->loss.size());
  valid_json(record);
}

TEST_CASE("run_case: a case repeats itself bit for bit", "[session]") {
  Case c = tiny_case();
  c.recipe = "mxfp8";
  c.steps = 3;
  const Record first = run_case(validate(c)), second = run_case(validate(c));
  check_same_training(first, second);
}

TEST_CASE("run_case: a diverging run has the status diverged and its step", "[session]") {
  Case c = tiny_case();
  c.lr = 1e30;
  const Record record = run_case(validate(c));
  INFO(record.error.value_or("no error"));
  CHECK(record.status == Status::diverged);
  CHECK(record.error.value_or("").find("at step 2") != std::string::npos);
  REQUIRE(record.training.has_value());
  CHECK(record.training->loss.size() == 2);
  CHECK(!record.metrics.has_value());
  valid_json(record);
}

TEST_CASE("run_case: a shape that a recipe cannot run is unsupported and the error names the dimension",
          "[session]") {
  Case c = testing::with_flags(tiny_case(), "--recipe mxfp8 --seq 100 --batch 1");
  const Record record = run_case(validate(c));
  CHECK(record.status == Status::unsupported);
  INFO(record.error.value_or("no error"));
  CHECK(record.error.value_or("").find("qkv: M=100 is not a multiple of 16") != std::string::npos);
  CHECK(record.env.host.has_value());
  CHECK(record.env.threads.value_or(0) == 1);
  valid_json(record);
}
