// Rules of input, of recipes and of options without effect: each refuses a command line. support_rules_test.cpp and
// layout_rules_test.cpp have those of cases that do not run; parallel_pairs_test.cpp walks all pairs of axes.
#include "bench/case/rules_testing.h"

using namespace precbench;
using namespace precbench::testing;

TEST_CASE("rules of input: every one refuses a case, by flag", "[rules]") {
  const auto plan_of = [](const Case& c) {
    Plan known;
    known.fields = c;
    known.model = find_model(c.model);
    known.recipe = find_recipe(c.recipe);
    return known;
  };
  const auto told = [](const Plan& known) {
    const std::string said = refusal_of([&] { validate(known.fields); });
    const std::vector<Case> beside_another = {known.fields, Case{}};
    CHECK(refusal_of([&] { validate(beside_another); }) == said);
    return said;
  };
  check_samples(
      Verdict::invalid,
      {
          {"--gpus 1048576 --batch 1", ""},
          {"--gpus 1048577", "--gpus: must be at most 1048576, not 1048577"},
          {"--tensor 1048577", "--tensor: must be at most 1048576, not 1048577"},
          {"--accumulation 16385", "--accumulation: must be at most 16384, not 16385"},
          {"--micro-batches 16385", "--micro-batches: must be at most 16384, not 16385"},
          {"--lora-rank 4097", "--lora-rank: must be at most 4096, not 4097"},
          {"--batch 100000 --seq 100000",
           "--batch, --seq, --accumulation, --gpus: 1e+10 tokens per step; the limit is 2147483647"},
          {"--batch 1024 --seq 131072 --micro-batches 16", "--batch, --seq, --micro-batches, --gpus: "},
          {"--steps 1000001",
           "--steps: must be at most 1000000, not 1000001: a record lists every step of a run"},
          {"--steps 500000 --eval-every 1",
           "--eval-every: 500000 evaluations in 500000 steps; the limit is 100000"},
          {"--attention own", "--attention own: selects GPU kernels, but --device is cpu"},
          {"--attention own --device cuda", ""},
          {"--gemm own", "--gemm own: selects GPU kernels, but --device is cpu"},
          {"--gemm own --device cuda", ""},
          {"--parallel hsdp",
           "--shard-group: hsdp needs groups of 2 or more ranks, and only hsdp has groups"},
          {"--shard-group 2",
           "--shard-group: hsdp needs groups of 2 or more ranks, and only hsdp has groups"},
          {"--schedule cosine", "--schedule cosine needs a number of steps: add --steps N"},
          {"--schedule linear --steps 4 --warmup 4",
           "--warmup: 4 steps leave no steps of --steps 4 for the linear schedule"},
          {"--schedule linear --steps 4 --warmup 3", ""},
          {"--packing on",
           "--packing on: packs documents of prompt and answer (.jsonl), which --data synthetic is not"},
          {"--packing on --data @chat.jsonl", ""},
          {"--lora-alpha 4", "--lora-alpha: scales the output of adapters; add --lora RANK"},
          {"--lora-alpha 4 --lora-rank 8", ""},
          {"--lora-rank 8 --recipe blockwise_pow2 --flow on",
           "--flow on: chooses the operands of wgrad, which frozen weights (--lora-rank) do not have"},
          {"--recipe blockwise_pow2 --flow on", ""},
          {"--init-from a --fork-from b",
           "--fork-from and --init-from: both set the initial weights; choose one"},
          {"--fork-from b", ""},
          {"--checkpoint-every 2", "--checkpoint-every needs a number of steps: add --steps N"},
          {"--checkpoint-every 2 --steps 4", ""},
          {"--checkpoint-at 2", "--checkpoint-at needs a number of steps: add --steps N"},
          {"--checkpoint-at 2,9 --steps 4", "--checkpoint-at: 9 is beyond --steps 4"},
          {"--checkpoint-at 2,4 --steps 4", ""},
          {"--fidelity-stress ffn:8",
           "--fidelity-stress needs batches to compare gradients of: add --fidelity-batches K"},
          {"--fidelity-stress ffn:8 --fidelity-batches 1", ""},
          {"--eval-recipes mxfp8", "--eval-recipes: needs held-out text to evaluate on: add --eval-data"},
          {"--eval-recipes mxfp8 --eval-data @held.txt", ""},
          {"--sensitivity all", "--sensitivity needs batches to measure on: add --fidelity-batches K"},
          {"--sensitivity all --recipe mxfp8 --fidelity-batches 1", ""},
          {"--z-loss 0.1", "--z-loss: tiny has no experts"},
          {"--stress ffn:8:100000", "--stress: 100000 channels requested, ffn of a block has "},
          {"--stress ffn:8", ""},
          {"--stress norm:8 --model olmo2-1b", "--stress: norm: the model has norms on the outputs"},
          {"--fidelity-batches 1 --fidelity-stress norm:8 --model olmo2-1b",
           "--fidelity-stress: norm: the model has norms on the outputs"},
      },
      plan_of, told);
}

TEST_CASE("rules of recipes: a conflict is thrown, or kept as a refusal beside other cases", "[rules]") {
  const auto plan_of = [](const Case& c) { return validate(c, Refusals::kept); };
  const auto told = [](const Plan& plan) {
    CHECK(plan.refusal.value_or("") == refusal_of([&] { validate(plan.fields); }));
    CHECK(unsupported_reason(plan) == plan.refusal);
    return plan.refusal.value_or("");
  };
  check_samples(
      Verdict::refused,
      {
          {"--optimizer lion --beta1 0.95 --beta2 0.98", ""},
          {"--momentum 0.9", "--momentum: adamw has no such constant"},
          {"--optimizer lion --recipe msamp_o1 --master bf16",
           "--grads e4m3: needs scales, which lion does not support; adamw does"},
          {"--optimizer lion --eps 1e-3", "--eps: lion has no such constant"},
          {"--beta2 1.5", "--beta2: must be below 1, not 1.5"},
          {"--optimizer muon --moments coat",
           "--optimizer muon: optimizer state in coat needs scales, which only adamw supports"},
          {"--optimizer lion --recipe coat", "--optimizer lion: optimizer state in "},
          {"--optimizer muon --master fp16",
           "--master fp16: needs scales, which muon does not support; adamw does"},
          {"--optimizer lion --grads e4m3",
           "--grads e4m3: needs scales, which lion does not support; adamw does"},
          {"--optimizer lion --second-moment bf16", "--second-moment: lion has no second moment"},
          {"--optimizer adafactor --moments bf16",
           "--moments: adafactor keeps row and column sums, in fp32 only"},
          {"--recipe bf16 --switch-recipe msamp_o1@5 --steps 10",
           "--switch-recipe: msamp_o1@5: it has master fp16, weights bf16, gradients e4m3, but the run has fp32, bf16, fp32"},
          {"--switch-recipe mxfp8@2", "--switch-recipe: needs a number of steps: add --steps N"},
          {"--recipe mxfp8 --keep-bf16 block:77", "--keep-bf16: block:77: tiny has 4 blocks, counted from 0"},
      },
      plan_of, told);
}

TEST_CASE("rules of options without effect: every one names the option and what gives it an effect",
          "[rules]") {
  const auto plan_of = [](const Case& c) { return validate(c); };
  const auto told = [](const Plan& plan) {
    Axes flags;
    for (const Field& field : case_fields())
      if (is_set(plan.fields, field.member)) flags[field.name] = {get_text(plan.fields, field)};
    return unused_option({plan}, flags, {}).value_or("");
  };
  check_samples(
      Verdict::unused,
      {
          {"--glob *.c", "--glob: applies to folders only, and neither --data nor --eval-data is a folder"},
          {"--glob *.c --data @", ""},
          {"--glob *.c --eval-data @", ""},
          {"--eval-every 4", "--eval-every: needs held-out text: add --eval-data FILE"},
          {"--eval-every 4 --eval-data @held.txt", ""},
          {"--eval-tokens 64", "--eval-tokens: needs held-out text: add --eval-data FILE"},
          {"--eval-tokens 64 --eval-data @held.txt", ""},
          {"--checkpoint-dir x", "--checkpoint-dir: no checkpoint is written: add --checkpoint-every N"},
          {"--checkpoint-keep all", "--checkpoint-keep: no checkpoint is written: add --checkpoint-every N"},
          {"--checkpoint-dir x --checkpoint-keep all --checkpoint-every 2 --steps 4", ""},
          {"--checkpoint-dir x --checkpoint-keep all --checkpoint-at 2 --steps 4", ""},
          {"--reshard off --gpus 2",
           "--reshard: only sharded ranks gather weights: add --parallel fsdp and --gpus N"},
          {"--reshard off --parallel fsdp",
           "--reshard: only sharded ranks gather weights: add --parallel fsdp and --gpus N"},
          {"--reshard off --parallel fsdp --gpus 2", ""},
          {"--grad-sync last --gpus 2 --accumulation 2",
           "--grad-sync: only sharded ranks with several micro-steps have a choice: add --parallel fsdp, --gpus N and "
           "--accumulation M"},
          {"--grad-sync auto --gpus 2 --parallel fsdp",
           "--grad-sync: only sharded ranks with several micro-steps have a choice: "},
          {"--grad-sync last --gpus 2 --parallel fsdp --accumulation 2", ""},
          {"--reduce-amax on", "--reduce-amax: there is one rank: add --gpus N"},
          {"--reduce-amax on --gpus 2", ""},
          {"--warmup 21 --steps 20", "--warmup: no run reaches its --lr; use a warmup of at most --steps"},
          {"--warmup 20 --steps 20", ""},
          {"--warmup 20", ""},
          {"--time-limit 5 --steps 20",
           "--time-limit: applies to --steps auto only, but --steps is a number"},
          {"--time-limit 5", ""},
      },
      plan_of, told);
}

TEST_CASE(
    "unused_option: an option of the file may be overruled by a flag, and one case that uses it is enough",
    "[rules]") {
  const auto unused = [](const std::string& flags, const std::string& file, const std::string& more = "") {
    std::vector<Plan> plans = {validate(case_of_flags(file + " " + flags))};
    if (!more.empty()) plans.push_back(validate(case_of_flags(file + " " + flags + " " + more)));
    return unused_option(plans, axes_of(flags), axes_of(file)).value_or("");
  };
  const std::string sharded =
      "--reshard: only sharded ranks gather weights: add --parallel fsdp and --gpus N";
  CHECK(unused("", "--reshard off") == sharded);
  CHECK(unused("--gpus 1", "--reshard off") == "");
  CHECK(unused("--gpus 1 --reshard off", "") == sharded);
  CHECK(unused("--seq 64", "--reshard off") == sharded);
  CHECK(unused("--reshard off", "", "--gpus 2") == sharded);
  CHECK(unused("--reshard off", "", "--gpus 2 --parallel fsdp") == "");
  CHECK(unused("--glob * --checkpoint-keep last --reshard on --reduce-amax off", "") == "");
}
