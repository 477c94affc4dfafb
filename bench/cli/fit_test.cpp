// Tests that a dry run says what fits a GPU, and that proposed changes are predicted, sufficient and needed.
#include "bench/cli/fit.h"

#include <map>
#include <set>

#include "bench/cli/cli_testing.h"
#include "kernels/base/errors.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

Case case_of(const std::map<std::string, std::string>& fields) {
  Case c;
  c.device = "cuda";
  for (const auto& [name, value] : fields) set_text(c, *find_field(name), value);
  return c;
}

/// Returns the case with the change; flags in `without` keep the case's values.
Case changed(Case c, const Change& change, const std::vector<std::string>& without = {}) {
  for (const auto& [flag, value] : change.flags)
    if (std::find(without.begin(), without.end(), flag) == without.end())
      set_text(c, *find_field(flag.substr(2)), value);
  return c;
}

/// Returns true if the case runs and fits.
bool is_good(const Case& c, const MemoryLimit& limit) {
  const Prediction prediction = predict(validate(c, Refusals::kept));
  return !prediction.unsupported && fits(prediction.memory.peak, limit);
}

}  // namespace

TEST_CASE("nearest_change: what leaves training as it is comes first", "[cli][fit]") {
  const MemoryLimit h100 = find_memory_limit("h100").value();
  const auto change = [&](const std::map<std::string, std::string>& fields) {
    return nearest_change(validate(case_of(fields)), h100).value().text();
  };
  CHECK(change({{"model", "llama3.1-8b"}, {"gpus", "8"}, {"parallel", "fsdp"}, {"seq", "8192"}})
            .starts_with("--recompute "));
  CHECK(change({{"model", "llama3.1-8b"}, {"gpus", "8"}, {"batch", "1"}}) == "--parallel fsdp");
  // Whole gradients are given up before training changes.
  CHECK(change({{"model", "llama3.1-8b"},
                {"gpus", "2"},
                {"parallel", "fsdp"},
                {"seq", "512"},
                {"batch", "1"},
                {"accumulation", "16"},
                {"grad_sync", "last"}}) == "--grad-sync every");
}

TEST_CASE("nearest_change: recomputation repeats as little as suffices", "[cli][fit]") {
  const MemoryLimit h100 = find_memory_limit("h100").value();
  const auto flops = [](const Case& c) { return dry_run(validate(c), nullptr).model_flops(); };
  std::set<std::string> proposed;
  for (const char* batch : {"3", "4", "6", "8", "12"}) {
    const Case c = case_of(
        {{"model", "llama3.1-8b"}, {"gpus", "8"}, {"parallel", "fsdp"}, {"seq", "8192"}, {"batch", batch}});
    INFO("batch " << batch);
    if (is_good(c, h100)) continue;
    const Change change = nearest_change(validate(c), h100).value();
    REQUIRE(change.text().starts_with("--recompute "));
    const Case good = changed(c, change);
    proposed.insert(good.recompute);
    CHECK(is_good(good, h100));
    for (const char* other : {"norm", "attention", "attention+norm", "ffn", "ffn+norm", "attention+ffn+norm",
                              "block:4", "block:8", "block:16", "block:24", "block"}) {
      Case less = c;
      less.recompute = other;
      INFO(other);
      if (flops(less) < flops(good)) CHECK(!is_good(less, h100));
    }
  }
  CHECK(proposed.size() >= 3);
}

TEST_CASE("nearest_change: changes are sufficient and each is needed", "[cli][fit]") {
  const std::vector<std::pair<const char*, std::map<std::string, std::string>>> cases = {
      {"h100", {{"model", "llama3.1-8b"}, {"seq", "4096"}, {"batch", "1"}}},
      {"h100",
       {{"model", "llama3.1-8b"},
        {"recipe", "mxfp8"},
        {"seq", "32768"},
        {"gpus", "4"},
        {"parallel", "fsdp"}}},
      {"a100-40gb", {{"model", "qwen3-8b"}, {"gpus", "8"}, {"seq", "4096"}, {"batch", "4"}}},
      {"h200",
       {{"model", "llama3.3-70b"},
        {"gpus", "8"},
        {"parallel", "fsdp"},
        {"seq", "8192"},
        {"recipe", "blockwise"}}},
      {"rtx4090", {{"model", "llama3.2-3b"}, {"batch", "1"}, {"seq", "2048"}}},
      {"h100",
       {{"model", "mixtral-8x7b"}, {"gpus", "8"}, {"parallel", "fsdp"}, {"seq", "4096"}, {"batch", "1"}}}};
  // Flags that only change together.
  const std::map<std::string, std::vector<std::string>> together = {
      {"--accumulation", {"--accumulation", "--batch"}}, {"--batch", {"--accumulation", "--batch"}}};
  for (const auto& [gpu, fields] : cases) {
    const MemoryLimit limit = find_memory_limit(gpu).value();
    const Case c = case_of(fields);
    INFO(gpu << ' ' << c.model);
    REQUIRE(!is_good(c, limit));
    const std::optional<Change> change = nearest_change(validate(c), limit);
    REQUIRE(change);
    INFO(change->text());
    CHECK(is_good(changed(c, *change), limit));
    CHECK(predict(validate(changed(c, *change))).memory.peak == change->peak);
    for (const auto& [flag, value] : change->flags) {
      INFO("without " << flag);
      const auto group = together.find(flag);
      const Case without = changed(c, *change, group == together.end() ? std::vector{flag} : group->second);
      CHECK(!is_good(without, limit));
    }
    CHECK(changed(c, *change).batch * changed(c, *change).accumulation == c.batch * c.accumulation);
  }
}

TEST_CASE("nearest_change: none for a model that fits nowhere", "[cli][fit]") {
  const MemoryLimit small = find_memory_limit("l4").value();
  CHECK(!nearest_change(validate(case_of({{"model", "llama3.1-405b"}, {"seq", "131072"}, {"batch", "1"}})),
                        small));
}

TEST_CASE("runnable_changes: FP8 gathers whose blocks would be padded", "[cli][fit]") {
  const Case c = case_of(
      {{"model", "tiny"}, {"recipe", "blockwise"}, {"gpus", "8"}, {"parallel", "fsdp"}, {"gather", "fp8"}});
  const Plan plan = validate(c);
  REQUIRE(contains(predict(plan).unsupported.value_or(""), "a block would be padded to"));
  const std::vector<Change> changes = runnable_changes(plan);
  REQUIRE(changes.size() == 2);
  CHECK(changes[0].text() == "--gather bf16");
  CHECK(changes[1].text() == "--gpus 2");
  for (const Change& change : changes) CHECK(!predict(validate(changed(c, change))).unsupported);
  Case twice = changed(c, changes[1]);  // the most ranks that work, of halves
  twice.gpus *= 2;
  CHECK(predict(validate(twice)).unsupported);
  CHECK(runnable_changes(validate(case_of({{"model", "tiny"}}))).empty());
}

TEST_CASE("extra_memory: segments explain what a recipe needs beyond BF16", "[cli][fit]") {
  const std::map<std::string, std::string> fields = {
      {"model", "llama3.1-8b"}, {"gpus", "8"}, {"parallel", "fsdp"}, {"seq", "8192"}};
  Case c = case_of(fields);
  const Prediction bf16 = predict(validate(c));
  c.recipe = "mxfp8";
  const Prediction mxfp8 = predict(validate(c));
  const std::string why = extra_memory(mxfp8, bf16).value();
  const std::int64_t more = mxfp8.at_peak.total() - bf16.at_peak.total();
  CHECK(why.starts_with(gib(more) + " GiB more than bf16 at the peak: activations +"));
  CHECK(contains(why, "quantized copies of X and dY"));
  CHECK(!extra_memory(bf16, bf16));
  CHECK(!extra_memory(bf16, mxfp8));
  // A few bytes would print as 0.000 GiB, whatever share of a small model they are.
  Case small = case_of({{"model", "tiny"}, {"seq", "32"}, {"batch", "1"}});
  const Prediction small_bf16 = predict(validate(small));
  for (const Recipe& recipe : builtin_recipes()) {
    small.recipe = recipe.name;
    if (const auto words = extra_memory(predict(validate(small)), small_bf16))
      CHECK(!contains(*words, "0.000"));
  }
}

TEST_CASE("sweep --dry-run --gpu: every case fits or not, with what would", "[cli][fit]") {
  const std::string dry =
      "sweep --dry-run --model Qwen/Qwen3-8B --recipe bf16,mxfp8,nvfp4 --seq 8192 --gpus 8 --parallel ";
  const Answer answer = precbench_says(dry + "fsdp --batch 1,8 --gpu h100");
  INFO(answer.text);
  CHECK(answer.status == 0);
  CHECK(contains(answer.text, "  fits  "));
  CHECK(contains(answer.text, "fits: NVIDIA H100 80GB HBM3, 78.4 GiB (98% of the data sheet's 80 GB)"));
  CHECK(contains(answer.text,
                 "qwen3-8b bf16 batch=8: does not fit; the nearest change that does: --recompute "));
  CHECK(!contains(answer.text, "qwen3-8b bf16 batch=1: does not fit"));
  CHECK(contains(answer.text, "qwen3-8b mxfp8 batch=8: "));
  CHECK(contains(answer.text, "unsupported: nvfp4: schedule: needs a number of steps"));
  CHECK(contains(answer.text, "6 cases"));
  CHECK(!contains(precbench_says("sweep --dry-run --device cpu --model tiny").text, "fits"));
}

TEST_CASE("sweep --gpu: bad names and uses are refused", "[cli][fit]") {
  CHECK(contains(refused("sweep --dry-run --gpu h1000"),
                 "--gpu: no data sheet of \"h1000\"; known: NVIDIA A100"));
  CHECK(refused("sweep --gpu h100 --model tiny") ==
        "precbench: --gpu: names a GPU to plan for: add --dry-run; cases run on this machine's");
  CHECK(refused("sweep --dry-run --gpu h100 --device cpu") == "precbench: --gpu: --device cpu is no GPU");
  CHECK(refused("sweep --dry-run --gpu ''") == "precbench: --gpu: empty name");
}
