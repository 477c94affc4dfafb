// Whole cases with a fidelity probe: it changes no bit of the training, from initial weights, in a fork and
// after an interruption.

#include "bench/measure/checkpoint_testing.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

using Json = nlohmann::ordered_json;

Case probed(Case c) {
  c.fidelity_batches = 2;
  c.fidelity_stress = "ffn:16 norm:16";
  return c;
}

Json fidelity_of(const Record& record) { return valid_json(record)["fidelity"]; }

void check_same_but_probe(const Record& with, const Record& without) {
  check_same_training(with, without);
  CHECK(Json(with)["memory"]["predicted"] == Json(without)["memory"]["predicted"]);
  CHECK(Json(with)["memory"]["measured"]["activations"] ==
        Json(without)["memory"]["measured"]["activations"]);
  CHECK(Json(with)["memory"]["measured"]["gradients"] == Json(without)["memory"]["measured"]["gradients"]);
  CHECK(Json(with)["communication"] == Json(without)["communication"]);
  CHECK(with.warnings == without.warnings);
  CHECK(with.id != without.id);
  CHECK(without.fidelity.empty());
}

}  // namespace

TEST_CASE("run_case: a fidelity probe changes no bit of the training", "[fidelity]") {
  const TempDirectory directory;
  for (const char* recipe : {"bf16", "tensorwise", "tensorwise_delayed"})
    for (const auto& [gpus, parallel] : {std::pair{1, "ddp"}, {2, "ddp"}, {2, "fsdp"}, {4, "hsdp"}})
      for (const char* master : {"fp32", "bf16_sr"}) {
        INFO(recipe << ", " << gpus << " ranks, " << parallel << ", master " << master);
        Case c = small_case(directory);
        c.recipe = recipe, c.gpus = gpus, c.parallel = parallel, c.master = master;
        c.shard_group = c.parallel == "hsdp" ? 2 : 1;
        c.steps = 4;
        c.save_init = directory / "first.safetensors", c.save_final = directory / "last.safetensors";
        const Record without = run_ok(c);
        const std::string first = file_text(c.save_init), last = file_text(c.save_final);
        const Record with = run_ok(probed(c));
        check_same_but_probe(with, without);
        CHECK(file_text(c.save_init) == first);
        CHECK(file_text(c.save_final) == last);
        const Json fidelity = fidelity_of(with);
        REQUIRE(fidelity.size() == 3);
        CHECK((fidelity[1]["stress"] == "ffn:16:4" && fidelity[2]["stress"] == "norm:16:4"));
        for (const Json& state : fidelity)
          CHECK((state["whole"]["error"]["mean"] == 0.0) == (c.recipe == "bf16"));
      }
}

TEST_CASE("run_case: the probe of a fork uses the trunk's weights", "[fidelity][checkpoint]") {
  const TempDirectory directory;
  Case trunk = with_checkpoints(small_case(directory), directory / "trunk", 3);
  trunk.checkpoint_keep = "all";
  run_ok(trunk);
  Case fork = small_case(directory);
  fork.steps = 2;
  const Json fresh = fidelity_of(run_ok(probed(fork)));
  fork.fork_from = checkpoint_at(trunk, 6);
  const Record without = run_ok(fork), with = run_ok(probed(fork));
  check_same_but_probe(with, without);
  const Json forked = fidelity_of(with);
  CHECK(forked[0]["loss_bf16"] < fresh[0]["loss_bf16"]);
  Case weights = probed(fork);
  weights.fork_from = "";
  weights.init_from = checkpoint_at(trunk, 6) + "/weights.safetensors";
  CHECK(fidelity_of(run_ok(weights)) == forked);
}

TEST_CASE("run_case: a resumed run repeats the probe of its first weights", "[fidelity][checkpoint]") {
  const TempDirectory directory;
  Case c = probed(small_case(directory));
  const Record straight = run_ok(c);
  c = with_checkpoints(c, directory / "checkpoints", 3);
  run_ok(c);
  std::filesystem::remove_all(checkpoint_at(c, 6));
  const Record rest = run_ok(c);
  REQUIRE(rest.warnings.size() == 1);
  CHECK(rest.warnings[0].starts_with("resumed from the checkpoint "));
  CHECK(rest.training->loss == straight.training->loss);
  CHECK(fidelity_of(rest) == fidelity_of(straight));
}

TEST_CASE("run_case: weights gathered in FP8 have no fidelity probe", "[fidelity]") {
  const TempDirectory directory;
  Case c = small_case(directory);
  c.gpus = 2, c.parallel = "fsdp", c.gather = "fp8";
  const Record record = run_case(validate(probed(c)));
  CHECK(record.status == Status::unsupported);
  CHECK(record.error == "fidelity: weights gathered in FP8 leave no BF16 weights to compare with");
  CHECK(run_ok(c).fidelity.empty());
}

TEST_CASE("run_case: sensitivity cells change no bit of the training", "[fidelity][sensitivity]") {
  const TempDirectory directory;
  for (const char* recipe : {"bf16", "tensorwise", "tensorwise_delayed"})
    for (const auto& [gpus, parallel] : {std::pair{1, "ddp"}, {2, "fsdp"}}) {
      INFO(recipe << ", " << gpus << " ranks, " << parallel);
      Case c = small_case(directory);
      c.recipe = recipe, c.gpus = gpus, c.parallel = parallel;
      c.master = "bf16_sr";
      c.save_final = directory / "last.safetensors";
      const Record without = run_ok(c);
      const std::string last = file_text(c.save_final);
      c.fidelity_batches = 2, c.sensitivity = "all";
      const Record with = run_ok(c);
      check_same_training(with, without);
      CHECK(file_text(c.save_final) == last);
      CHECK(with.warnings == without.warnings);
      CHECK(Json(with)["memory"]["measured"] == Json(with)["memory"]["predicted"]);
      CHECK(!Json(without).contains("sensitivity"));
      const Json json = valid_json(with);
      CHECK(json.at("case").at("sensitivity") == "all");
      const std::size_t cells = json.at("sensitivity").at("cells").size();
      CHECK((c.recipe == "bf16") == (cells == 2));
      CHECK(json.at("sensitivity").at("batches") == 2);
    }
}

TEST_CASE("run_case: a fork's sensitivity cells use the trunk's weights",
          "[fidelity][sensitivity][checkpoint]") {
  const TempDirectory directory;
  Case trunk = with_checkpoints(small_case(directory), directory / "trunk", 3);
  trunk.checkpoint_keep = "all";
  run_ok(trunk);
  Case c = small_case(directory);
  c.steps = 1, c.fidelity_batches = 2, c.sensitivity = "gemms";
  const double fresh = *run_ok(c).sensitivity->loss_bf16;
  c.fork_from = checkpoint_at(trunk, 6);
  const Record forked = run_ok(c);
  CHECK(*forked.sensitivity->loss_bf16 < fresh);
  c.fork_from = "";
  c.init_from = checkpoint_at(trunk, 6) + "/weights.safetensors";
  CHECK(Json(run_ok(c))["sensitivity"] == Json(forked)["sensitivity"]);
}
