// Every rule of cases: command lines that break it, and what they are told. parallel_pairs_test.cpp walks all pairs of axes.
#include "bench/case/rules.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "bench/case/case_testing.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

struct Sample {
  const char* flags;   ///< "--gpus 2"; "@name" is a file of SampleFiles
  const char* reason;  ///< its beginning; empty: the case is fine
};

/// Models, text and documents that samples read.
struct SampleFiles {
  TempDirectory folder;

  SampleFiles() {
    const auto model = [&](const char* name, const char* keys) {
      folder.write(name, std::string(R"({"layers": 1, "width": 64, "ffn": 128, "vocab": 256, "heads": 2, )") +
                             keys + "}");
    };
    model("latent.json", R"("head_dim": 48, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 32)");
    model("odd_latent.json",
          R"("head_dim": 48, "kv_lora_rank": 36, "qk_rope_head_dim": 16, "v_head_dim": 32)");
    model("sinks.json", R"("head_dim": 32, "attention_sinks": true)");
    model("softcap.json", R"("head_dim": 64, "attention_softcap": 50)");
    model("wide_softcap.json", R"("head_dim": 264, "attention_softcap": 50)");
    model("large_softcap.json", R"("head_dim": 64, "attention_softcap": 2000)");
    model("learned.json", R"("head_dim": 32, "learned_positions": 64)");
    model("tempered.json", R"("head_dim": 32, "layers_without_rope": [0], "temperature": 0.1,
                         "temperature_positions": 64)");
    model("window.json", R"("head_dim": 64, "sliding_window": 64)");
    folder.write("blocks.json",
                 R"({"layers": 1, "width": 256, "ffn": 192, "vocab": 256, "heads": 8, "kv_heads": 4,
                                  "head_dim": 64})");
    model("wide.json", R"("head_dim": 264)");
    model("heads_of_96.json", R"("head_dim": 96)");
    model("heads_of_128.json", R"("head_dim": 128)");
    model("heads_of_24.json", R"("head_dim": 24)");
    folder.write("no_groups.json",
                 R"({"layers": 1, "width": 24, "ffn": 52, "heads": 2, "kv_heads": 1, "head_dim": 8,
                                  "vocab": 101})");
    nlohmann::json apart = recipe_to_json(find_recipe("tensorwise_delayed"));
    for (const char* gemm : {"fprop", "dgrad", "wgrad"})
      for (const char* operand : {"a", "b"}) apart[gemm][operand]["history"]["reduce"] = false;
    apart["name"] = "apart";
    folder.write("apart.json", apart.dump());
    nlohmann::json narrow = recipe_to_json(find_recipe("tensorwise"));
    for (const char* gemm : {"fprop", "dgrad"}) narrow[gemm]["b"]["format"] = "e3m4";
    narrow["name"] = "narrow";
    folder.write("narrow.json", narrow.dump());
    nlohmann::json again = recipe_to_json(find_recipe("tensorwise"));
    again["name"] = "again";
    again["fprop"]["a"]["scale"] = again["wgrad"]["b"]["scale"] = "f32_pow2";
    again["wgrad"]["b"]["source"] = "fprop";
    folder.write("again.json", again.dump());
    folder.write("held.txt", std::string(64, 'a'));
    folder.write("chat.jsonl", "{\"prompt\": [1, 2], \"answer\": [3]}\n");
  }

  Case case_of(std::string flags) const {
    for (std::size_t at = 0; (at = flags.find(" @")) != flags.npos;) flags.replace(at + 1, 1, folder / "");
    return case_of_flags(flags);
  }
};

/// Checks the reason that each sample is given, and that each rule with this verdict is broken by a sample and kept by
/// another one that sets its field. `plan_of`: plan of a case. `told`: reason of a plan; empty if it breaks no rule.
template <class PlanOf, class Told>
void check_samples(Verdict verdict, const std::vector<Sample>& samples, PlanOf&& plan_of, Told&& told) {
  const SampleFiles files;
  std::set<const Rule*> broken, kept;
  for (const Sample& sample : samples) {
    INFO(sample.flags);
    const Plan plan = plan_of(files.case_of(sample.flags));
    const std::string said = told(plan);
    if (*sample.reason)
      CHECK_THAT(said, Catch::Matchers::StartsWith(sample.reason));
    else
      CHECK(said.empty());
    for (const Rule& rule : case_rules(verdict)) {
      if (reason_of(rule, plan)) {
        broken.insert(&rule);
        break;  // the rules after it need not make sense of such a case
      }
      if (!rule.field || is_set(plan.fields, *rule.field)) kept.insert(&rule);
    }
  }
  for (const Rule& rule : case_rules(verdict)) {
    INFO("rule " << &rule - case_rules(verdict).data() << ": " << (rule.why ? rule.why : "(a function)"));
    CHECK(broken.contains(&rule));
    CHECK(kept.contains(&rule));
  }
}

}  // namespace

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

TEST_CASE("rules of support: every one gives the reason of a case that does not run", "[rules]") {
  const auto plan_of = [](const Case& c) { return validate(c); };
  const auto told = [](const Plan& plan) { return unsupported_reason(plan).value_or(""); };
  check_samples(
      Verdict::unsupported,
      {
          // Adapters.
          {"--lora-rank 8 --recipe mxfp8", ""},
          {"--lora-rank 8 --model tiny-moe --gpus 2 --ep 2",
           "--lora-rank: frozen experts are not divided among ranks (--ep); use --parallel fsdp"},
          {"--lora-rank 8 --model @latent.json",
           "--lora-rank: adapters of latent attention (MLA) are not supported"},
          {"--lora-rank 8 --model @sinks.json", "--lora-rank: frozen attention sinks are not supported"},
          {"--lora-rank 8 --model gpt2",
           "--lora-rank: checkpoints of gpt2 have several of its matrices in one tensor or under other names, whose "
           "adapters are not supported"},
          {"--lora-rank 8 --recipe tensorwise --gpus 2 --parallel fsdp --gather fp8",
           "--lora-rank: --gather fp8 is not supported with frozen weights; use --gather bf16"},
          {"--lora-rank 8 --master fp16", "--lora-rank: adapters have no FP16 master with scales"},
          {"--lora-rank 8 --recipe tensorwise --weights e4m3",
           "--lora-rank: --weights e4m3 is not supported with frozen weights"},
          {"--lora-rank 8 --grads e4m3",
           "--lora-rank: adapters' gradients in e4m3 are not supported; use --grads fp32 or bf16"},
          {"--lora-rank 8 --optimizer muon",
           "--lora-rank: muon orthogonalizes the model's matrices, which are frozen; use adamw, lion or adafactor"},
          {"--lora-rank 8 --recipe mxfp8 --fidelity-batches 1 --sensitivity roles",
           "--lora-rank: --sensitivity is not supported with adapters"},
          {"--lora-rank 9", ""},
          {"--lora-rank 9 --device cuda",
           "--lora-rank: 9 is not a multiple of 8, which the GEMMs of adapters need on the cuda device"},
          // Ranks.
          {"--gpus 4 --context 2", ""},
          {"--gpus 4 --context 3", "--context: 3 does not divide 4 ranks"},
          {"--gpus 1 --context 2", "--context: 2 does not divide 1 rank"},
          {"--gpus 4 --context 2 --seq 130",
           "--context 2: seq 130 is not a multiple of 4, two chunks per rank"},
          {"--gpus 2 --tensor 2", ""},
          {"--gpus 8 --tensor 2 --context 2 --parallel fsdp --recipe tensorwise --accumulation 2", ""},
          {"--gpus 3 --tensor 2",
           "--gpus 3: not a multiple of 2, the ranks of a replica (tensor 2 x context 1 x pipeline 1); the nearest that "
           "works: --gpus 4"},
          {"--gpus 4 --tensor 4",
           "--tensor 4: does not divide kv_heads (2); the nearest that works: --tensor 2"},
          {"--gpus 8 --tensor 8",
           "--tensor 8: does not divide heads (4); the nearest that works: --tensor 2"},
          {"--gpus 2 --tensor 2 --seq 33",
           "--tensor 2: does not divide the 33 tokens of a sequence that sequence parallelism divides; the nearest that "
           "works: --tensor 1"},
          {"--gpus 2 --tensor 2 --recipe mxfp8 --model @blocks.json", ""},
          {"--gpus 4 --tensor 4 --recipe mxfp8 --model @blocks.json", "down: K=48 is not a multiple of 32"},
          {"--gpus 2 --tensor 2 --model @latent.json",
           "--tensor 2: latent attention (MLA) on tensor ranks is not supported; use --tensor 1"},
          {"--gpus 2 --tensor 2 --model pythia-1b",
           "--tensor 2: a block with parallel residuals on tensor ranks is not supported; use --tensor 1"},
          {"--gpus 2 --tensor 2 --model gemma-2-2b",
           "--tensor 2: a norm on the output of a half, or on all heads together, on tensor ranks is not supported; use "
           "--tensor 1"},
          {"--gpus 2 --tensor 2 --model @learned.json",
           "--tensor 2: LayerNorm, biases, attention sinks and learned positions (learned) on tensor ranks are not "
           "supported; use --tensor 1"},
          {"--gpus 2 --tensor 2 --model tiny-moe",
           "--tensor 2: experts (tiny-moe) on tensor ranks are not supported; use --ep with --tensor 1"},
          {"--gpus 2 --tensor 2 --lora-rank 8",
           "--tensor 2: LoRA on tensor ranks is not supported; use --tensor 1"},
          {"--gpus 2 --tensor 2 --optimizer muon",
           "--tensor 2: muon on tensor ranks is not supported; use adamw or lion"},
          {"--gpus 2 --tensor 2 --moments e4m3",
           "--tensor 2: weights, gradients and moments of tensor ranks are FP32 or BF16; use --gather bf16, --weights "
           "bf16, --master fp32 or bf16, --grads and --moments fp32 or bf16"},
          {"--gpus 2 --tensor 2 --recipe tensorwise --kept torchao",
           "--tensor 2: tensor ranks gather activations again in backward instead of keeping more of them; use --kept "
           "precbench"},
          {"--gpus 2 --tensor 2 --recipe tensorwise --fidelity-batches 1",
           "--tensor 2: --fidelity-batches, --eval-recipes and --sensitivity compare whole tensors; use --tensor 1"},
          {"--gpus 2 --tensor 2 --recipe tensorwise --tensor-gather fp8", ""},
          {"--gpus 2 --tensor 2 --recipe mxfp8 --tensor-gather bf16", ""},
          {"--gpus 2 --recipe tensorwise --tensor-gather fp8",
           "--tensor-gather fp8: no ranks divide matrices; add --tensor N"},
          {"--gpus 2 --tensor 2 --recipe mxfp8 --tensor-gather fp8",
           "--tensor-gather fp8: all recipes of the run must cast activations and gradients with one scale of their own for "
           "both directions, as tensorwise does; use --tensor-gather bf16"},
          {"--gpus 2 --tensor 2 --recipe tensorwise --switch-recipe rowwise@2 --steps 4 --tensor-gather fp8",
           "--tensor-gather fp8: all recipes of the run must cast activations and gradients with one scale of their own for "
           "both directions, as tensorwise does; use --tensor-gather bf16"},
          {"--gpus 8 --tensor 2 --parallel hsdp --shard-group 2", ""},
          {"--gpus 8 --tensor 2 --parallel hsdp --shard-group 3", "--shard-group: 3 does not divide 4 ranks"},
          {"--gpus 8 --context 2 --parallel hsdp --shard-group 4", ""},
          {"--gpus 8 --context 2 --parallel hsdp --shard-group 3",
           "--shard-group: 3 does not divide 8 ranks"},
          {"--gpus 6 --context 2 --parallel hsdp --shard-group 3",
           "--shard-group: 3 is not a multiple of --context 2, whose ranks share a shard group"},
          {"--gpus 4 --context 2 --recipe tensorwise --reduce-amax group", ""},
          {"--gpus 4 --recipe tensorwise --reduce-amax group",
           "--reduce-amax group: no ranks share a sequence; add --context N or --tensor N"},
          {"--gpus 2 --tensor 2 --recipe tensorwise --reduce-amax group", ""},
          {"--gpus 2 --recipe @again.json --reduce-amax off", ""},
          {"--gpus 2 --recipe @again.json --reduce-amax on",
           "--reduce-amax on: wgrad from the data of fprop (again) repeats fprop's cast of X with the amax of one rank; "
           "use off"},
          {"--gpus 4 --context 2 --recipe tensorwise --reduce-amax group --model tiny-moe --ep 2",
           "--reduce-amax group: an expert's rows are tokens of all of --ep's ranks; use on or off"},
          {"--gpus 2 --context 2 --recipe blockwise --seq 512", ""},
          {"--gpus 2 --context 2 --recipe blockwise --seq 544",
           "--context 2: blockwise needs chunks of a multiple of 128 tokens, but seq / 4 is 136"},
          {"--gpus 2 --context 2 --recipe nvfp4 --steps 4 --seq 96",
           "--context 2: nvfp4 needs chunks of a multiple of 16 tokens, but seq / 4 is 24"},
          {"--gpus 2 --context 2 --recipe tensorwise --seq 132", ""},
          {"--gpus 2 --context 2 --recipe tensorwise --seq 132 --steps 4 --switch-recipe mxfp8@2",
           "--context 2: mxfp8 needs chunks of a multiple of 32 tokens, but seq / 4 is 33"},
          {"--gpus 2 --context 2 --device cuda --model @heads_of_128.json", ""},
          {"--gpus 2 --context 2 --device cuda --model @heads_of_128.json --attention cudnn",
           "--context: cuDNN attention takes whole sequences; use auto or own"},
          {"--gpus 2 --context 2 --device cuda --model @latent.json",
           "--context: the cuda device has no kernel for latent attention (MLA) in shared sequences"},
          {"--gpus 2 --context 2 --device cuda --model @heads_of_96.json",
           "--context: attention over keys of other ranks needs a head_dim of 64, 128 or 256, not 96"},
          {"--gpus 2 --context 2 --model @window.json", ""},
          {"--gpus 2 --context 2 --device cuda --model @window.json --seq 64", ""},
          {"--gpus 2 --context 2 --device cuda --model @window.json",
           "--context: the cuda device has no kernel for a window (64 tokens) in shared sequences"},
          {"--model tiny-moe --exchange slots",
           "--exchange, --slots and --dispatch need expert parallelism: add --ep N"},
          {"--model tiny-moe --gpus 2 --ep 2 --capacity 1.5", ""},
          {"--model tiny-moe --gpus 2 --ep 2 --slots 8", "--slots: --exchange gather has no slots"},
          {"--model tiny-moe --gpus 2 --ep 2 --exchange slots --slots 1025",
           "--slots: 1025 exceeds the 1024 tokens of a rank"},
          {"--model tiny-moe --gpus 2 --ep 2 --exchange slots --slots 1024", ""},
          {"--model tiny-moe --gpus 4 --ep 3", "--ep: 3 does not divide 4 ranks"},
          {"--model tiny-moe --gpus 6 --ep 3", "--ep: 3 does not divide 8 experts"},
          {"--model tiny-moe --gpus 2 --ep 2 --optimizer muon",
           "--ep: muon does not support expert parallelism; adamw and lion do"},
          {"--model tiny-moe --gpus 2 --ep 2 --moments e4m3",
           "--ep: expert parallelism supports optimizer state in fp32 or bf16 only"},
          {"--model tiny-moe --gpus 2 --ep 2 --recipe tensorwise --weights e4m3",
           "--ep: --weights e4m3 does not support expert parallelism"},
          {"--model tiny-moe --gpus 2 --ep 2 --recipe blockwise --dispatch fp8", ""},
          {"--model tiny-moe --gpus 2 --ep 2 --dispatch fp8",
           "--dispatch fp8: bf16 does not quantize activations to 8 bits"},
          {"--model tiny-moe --gpus 2 --ep 2 --recipe tensorwise --dispatch fp8 --steps 4 --switch-recipe mxfp8@1",
           "--dispatch fp8: the recipe changes during the run, and the format of tokens with it"},
          {"--model tiny-moe --gpus 2 --ep 2 --recipe mxfp8 --dispatch fp8 --exchange sync",
           "--dispatch fp8: GEMM scale layouts need a fixed number of rows; use --exchange gather or slots"},
          {"--model tiny-moe --gpus 2 --ep 2 --recipe mxfp8 --dispatch fp8 --batch 1 --seq 64",
           "--dispatch fp8: 64 tokens per rank; the scale layout needs a multiple of 128"},
          {"--model tiny-moe --gpus 2 --ep 2 --recipe @apart.json", ""},
          {"--model tiny-moe --gpus 2 --ep 2 --recipe @apart.json --dispatch fp8",
           "--dispatch fp8: history.reduce is false, but tokens of several ranks need a common scale"},
          {"--model tiny-moe --gpus 2 --ep 2 --fidelity-batches 1",
           "--ep: --fidelity-batches does not support expert parallelism"},
          {"--model tiny-moe --gpus 2 --ep 2 --eval-data @held.txt --eval-recipes mxfp8",
           "--ep: --eval-recipes does not support expert parallelism"},
          // Formats.
          {"--moments coat --parallel fsdp --model @no_groups.json", ""},
          {"--moments coat --parallel fsdp --gpus 2 --model @no_groups.json",
           "--moments coat: 2 shards would split a group of 128 elements of model.layers.0.mlp.up_proj.weight"},
          {"--moments e4m3 --parallel fsdp --gpus 2 --model @no_groups.json", ""},
          {"--grads e4m3 --gpus 4 --parallel hsdp --shard-group 2",
           "--grads e4m3: hsdp reduces gradients twice and would round in between; use ddp or fsdp"},
          {"--grads e4m3 --gpus 2 --parallel fsdp --accumulation 2 --grad-sync last",
           "--grad-sync last: gradients in e4m3 are summed over ranks in every micro-step; use --grads bf16 or fp32"},
          {"--weights e4m3 --recipe tensorwise", ""},
          {"--weights e4m3 --recipe tensorwise --model tiny-moe",
           "--weights e4m3: does not support blocks with experts"},
          {"--weights e4m3", "--weights e4m3: the recipe has BF16 weights"},
          {"--weights e4m3 --recipe @narrow.json",
           "--weights e4m3: the recipe's weights are e3m4, not an 8-bit floating-point format"},
          {"--recipe msamp_o3 --switch-recipe bf16@5 --steps 10", "--weights e4m3: the recipe changes"},
          {"--recipe msamp_o2", ""},
          {"--weights e4m3 --recipe mxfp8", "--weights e4m3: the recipe has more than one scale per weight"},
          {"--weights e4m3 --recipe tensorwise --steps 4 --switch-recipe bf16@2",
           "--weights e4m3: the recipe changes during the run, and the weight format with it"},
          {"--weights e4m3 --recipe tensorwise --keep-bf16 qkv",
           "--weights e4m3: no block has all of its linear layers in the recipe"},
          {"--recipe mxfp8 --flow on", "--flow on: mxfp8 has no quantized data to transpose"},
          {"--kept transformer_engine --recipe tensorwise --parallel fsdp --gpus 2 --context 2", ""},
          {"--kept coat --recipe tensorwise --recompute attention+norm", ""},
          {"--kept transformer_engine --recipe blockwise_pow2 --flow on",
           "--kept transformer_engine: --flow on keeps the rowwise data, which wgrad transposes"},
          {"--kept precbench --recipe blockwise_pow2 --flow on", ""},
          {"--kept torchao --model tiny-moe --recipe mxfp8",
           "--kept torchao: the rows of experts, which tiny-moe has, are gathered again in backward; use precbench"},
          {"--kept coat --model olmo2-1b",
           "--kept coat: norm_input and activation_input need blocks with one norm before each half, unlike olmo2-1b"},
          {"--kept torchao --model olmo2-1b", ""},
          {"--kept coat --recompute ffn",
           "--kept coat: norm_input and activation_input are kept instead of being recomputed: --recompute ffn would drop "
           "them"},
          {"--model @latent.json --device cuda", ""},
          {"--model @latent.json --device cuda --attention own",
           "--attention own: our kernels take values as wide as keys, not 32 and 48 (latent attention); use auto or "
           "cudnn"},
          {"--model @odd_latent.json", ""},
          {"--model @odd_latent.json --device cuda",
           "kv_lora_rank: 36 is not a multiple of 8, which latent attention needs on the cuda device"},
          {"--packing on --data @chat.jsonl --seq 64 --device cuda", ""},
          {"--packing on --data @chat.jsonl --seq 64 --device cuda --attention cudnn",
           "--packing on: cuDNN attention has no documents that share sequences; use auto or own"},
          {"--packing on --data @chat.jsonl --seq 64 --model @latent.json", ""},
          {"--packing on --data @chat.jsonl --seq 64 --device cuda --model @latent.json",
           "--packing on: the cuda device has no kernel for latent attention (MLA) within documents"},
          {"--packing on --data @chat.jsonl --seq 64 --device cuda --model @heads_of_128.json --gpus 2 --context 2",
           "--packing on: the cuda device has no kernel for documents in sequences that ranks share (--context)"},
          {"--packing on --data @chat.jsonl --seq 64 --device cuda --model @wide.json",
           "--packing on: head_dim is 264; attention within documents takes at most 256 on the cuda device"},
          {"--packing on --data @chat.jsonl --seq 64 --device cuda --model @softcap.json", ""},
          {"--model @wide_softcap.json", ""},
          {"--model @wide_softcap.json --device cuda",
           "head_dim: 264 with soft-capped scores; the cuda device has kernels for them up to 256"},
          {"--model @large_softcap.json --device cuda",
           "the model soft-caps the scores of attention at 2000, which the cuda device does at 1/1024 to 1024"},
          {"--model @softcap.json --device cuda --attention cudnn",
           "--attention cudnn: cuDNN does not soft-cap the scores of attention (at 50); use auto or own"},
          {"--recipe tensorwise_delayed --steps 9 --switch-recipe tensorwise_delayed_recent@3",
           "tensorwise_delayed and tensorwise_delayed_recent: one run has one kind of delayed scaling"},
          {"--recompute block:4", ""},
          {"--recompute block:5", "--recompute block:5: tiny has 4 blocks; to recompute all, use block"},
          {"--gather fp8 --recipe tensorwise --gpus 2 --parallel fsdp --keep-bf16 first_linear", ""},
          {"--gather fp8 --recipe tensorwise --gpus 2",
           "FP8 gather: only sharded ranks (fsdp, hsdp) gather weights"},
          {"--gather fp8 --gpus 2 --parallel fsdp", "FP8 gather: the recipe has BF16 weights"},
          {"--gather fp8 --recipe @apart.json --gpus 2 --parallel fsdp",
           "FP8 gather: history.reduce is false, so ranks have no common scale for their weight shards"},
          {"--gather fp8 --recipe rowwise --gpus 2 --parallel fsdp",
           "FP8 gather: the recipe's row and column"},
          {"--gather fp8 --recipe blockwise --gpus 2 --parallel fsdp --model tiny-moe",
           "FP8 gather: experts' weights are not supported"},
          {"--gather fp8 --recipe tensorwise --gpus 2 --parallel fsdp --steps 4 --switch-recipe bf16@2",
           "FP8 gather: the recipe changes during the run, and the weight format with it"},
          {"--gather fp8 --recipe tensorwise --gpus 2 --parallel fsdp --keep-bf16 o",
           "FP8 gather: no block has all of its linear layers in the recipe"},
          {"--gather fp8 --recipe blockwise --gpus 8 --parallel fsdp",
           "FP8 gather: for 8 shards to end where 128 rows of a matrix end, a block would be padded to 2.00 times its "
           "size, more than the 1.25 that pay"},
          {"--gather fp8 --recipe tensorwise --gpus 2 --parallel fsdp --fidelity-batches 1",
           "fidelity: weights gathered in FP8 leave no BF16 weights to compare with"},
          {"--weights e4m3 --recipe tensorwise --fidelity-batches 1",
           "fidelity: weights stored in FP8 leave no BF16 weights to compare with"},
          {"--grads e4m3 --fidelity-batches 1", ""},
          {"--grads e4m3 --fidelity-batches 1 --gpus 2",
           "fidelity: gradients in e4m3 need one rank and one micro-batch; use --grads bf16 or fp32"},
          {"--grads e4m3 --fidelity-batches 1 --accumulation 2", "fidelity: gradients in e4m3"},
          {"--gather fp8 --recipe tensorwise --gpus 2 --parallel fsdp --eval-data @held.txt --eval-recipes rowwise",
           "--eval-recipes: weights gathered in FP8 leave no BF16 weights to read in another recipe"},
          {"--batch 1 --seq 48 --eval-data @held.txt --eval-recipes mxfp8",
           "--eval-recipes: mxfp8: qkv: M=48 is not a multiple of 32 (wgrad.a 1x32)"},
          {"--eval-data @held.txt --eval-recipes mxfp8", ""},
          // The model.
          {"--model tiny-moe --master fp16",
           "experts: FP16 master weights and FP8 gradients are not supported"},
          {"--model gpt-oss-20b --capacity 2",
           "--capacity: a dropped slot would keep the bias of its expert's down layer; experts with biases drop none"},
          {"--model gpt-oss-20b --gpus 2 --ep 2 --exchange slots",
           "--exchange slots: a dropped token would keep the biases of its experts; use gather or sync"},
          {"--model @learned.json --seq 64", ""},
          {"--model @learned.json --seq 65", "seq: 65 is beyond the 64 positions that the model has learned"},
          {"--model @tempered.json --seq 65",
           "seq: 65 is beyond 64 positions, after which the model scales each query, which is not supported"},
          {"--model @tempered.json --seq 64 --gpus 2 --context 2",
           "seq: with 64 the model scales the last query of a sequence, which is not supported with context ranks"},
          {"--model @tempered.json --seq 64 --packing on --data @chat.jsonl",
           "seq: with 64 the model scales the last query of a sequence, which is not supported with packing"},
          {"--model @tempered.json --seq 32 --packing on --data @chat.jsonl", ""},
          {"--model @heads_of_24.json", ""},
          {"--model @heads_of_24.json --device cuda",
           "the CUDA device needs head_dim to be a multiple of 16, not 24"},
          {"--recipe mxfp8 --batch 1 --seq 48", "qkv: M=48 is not a multiple of 32 (wgrad.a 1x32)"},
          {"--recipe tensorwise --batch 1 --seq 48 --steps 4 --switch-recipe mxfp8@2",
           "qkv: M=48 is not a multiple of 32 (wgrad.a 1x32)"},
          {"--model tiny-moe --recipe nvfp4 --steps 100", "experts: nvfp4 is not grouped yet: FP4"},
          {"--model tiny-moe --recipe nvfp4_all --steps 100 --keep-bf16 gate_up,down", ""},
          {"--model smollm2-135m --batch 1 --recipe blockwise_pow2", ""},
          {"--model smollm2-135m --batch 1 --recipe blockwise_pow2 --flow on",
           "qkv: N=960 is not a multiple of 128 (flow: FP8 data is transposed in squares)"},
          // Layouts that are only predicted.
          {"--gpus 2 --tensor 2 --device cuda",
           "--tensor 2: predicted only, a run on a GPU does not support it; use sweep --dry-run --on MACHINE"},
          {"--overlap context", "--overlap context: predicted only, a run does not support it"},
      },
      plan_of, told);
}

TEST_CASE("rules of layouts: each names the flag, the rule and the nearest value that works",
          "[rules][layout]") {
  // llama3.1-8b has 32 layers, 32 heads, 8 key heads and a vocabulary of 128,256.
  const auto plan_of = [](Case c) {
    c.device = "cuda";
    if (c.model == "tiny") c.model = "llama3.1-8b";
    if (!is_set(c, &Case::seq)) c.seq = 4096;
    if (!is_set(c, &Case::gpus)) c.gpus = 64;
    c.batch = 1;
    return validate(c);
  };
  const auto told = [](const Plan& plan) { return layout_unsupported_reason(plan).value_or(""); };
  check_samples(
      Verdict::unpredicted,
      {
          {"--tensor 4 --pipeline 4 --micro-batches 8", ""},
          {"--tensor 4 --pipeline 4 --virtual-stages 2 --micro-batches 8", ""},
          {"--tensor 4 --pipeline 4 --context 2", ""},
          {"--tensor 16 --pipeline 4", ""},  // two ranks have the same key head
          {"--tensor 4 --pipeline 4 --micro-batches 8 --accumulation 8", ""},
          {"--tensor 4 --pipeline 17 --gpus 68", ""},  // 34 with embedding and head
          {"--tensor 4 --pipeline 4 --model qwen3-30b-a3b --ep 8 --exchange slots", ""},
          {"--tensor 3 --pipeline 4",
           "--tensor 3: does not divide heads (32); the nearest that works: --tensor 2"},
          {"--tensor 64 --pipeline 4",
           "--tensor 64: does not divide heads (32); the nearest that works: --tensor 16"},
          {"--tensor 4 --pipeline 4 --seq 4098",
           "--tensor 4: does not divide the 4098 tokens of a sequence that sequence parallelism divides; the nearest that "
           "works: --tensor 2"},
          {"--tensor 4 --model gpt2 --seq 1024",
           "--tensor 4: does not divide vocab (50257); the nearest that works: --tensor 1"},
          {"--tensor 7 --pipeline 4 --model qwen2.5-0.5b --gpus 112",
           "--tensor 7: does not divide ffn (4864); the nearest that works: --tensor 2"},
          {"--tensor 4 --model deepseek-v3",
           "--tensor 4: latent attention (MLA) on tensor ranks is not predicted; use --tensor 1"},
          {"--tensor 4 --model pythia-1b",
           "--tensor 4: a block with parallel residuals on tensor ranks is not predicted; use --tensor 1"},
          {"--tensor 4 --model gemma-2-2b",
           "--tensor 4: a norm on the output of a half, or on all heads together, on tensor ranks is not predicted; use "
           "--tensor 1"},
          {"--tensor 4 --lora-rank 16", "--tensor 4: LoRA on tensor ranks is not predicted; use --tensor 1"},
          {"--tensor 4 --model tiny-moe-shared --ep 4 --exchange slots",
           "--tensor 4: shared experts (tiny-moe-shared) on tensor ranks are not predicted; use --tensor 1"},
          {"--tensor 4 --pipeline 4 --model qwen3-30b-a3b",
           "--tensor 4: expert ranks must be whole groups of tensor ranks that divide 128 experts and the 16 ranks of a "
           "stage, not --ep 1; the nearest that works: --ep 4"},
          {"--tensor 4 --pipeline 4 --model qwen3-30b-a3b --ep 8",
           "--tensor 4: rows are predicted to travel to experts by all-to-all, as many as even routing sends; use "
           "--exchange slots without --slots"},
          {"--tensor 4 --virtual-stages 2",
           "--virtual-stages 2: divides the layers of pipeline stages; add --pipeline N"},
          {"--tensor 4 --micro-batches 8",
           "--micro-batches 8: are those of a pipeline; add --pipeline N, or use --accumulation 8"},
          {"--pipeline 4 --micro-batches 8 --accumulation 4",
           "--micro-batches 8: contradicts --accumulation 4: under a pipeline both are the micro-batches of a step; give "
           "one of them"},
          {"--pipeline 4 --recipe nvfp4 --steps 100",
           "--pipeline 4: nvfp4 leaves some blocks in BF16, which is not predicted in stages; use --pipeline 1"},
          {"--pipeline 4 --recompute block:8",
           "--pipeline 4: --recompute block:8 recomputes some blocks only, which is not predicted in stages; use "
           "--pipeline 1"},
          {"--pipeline 5",
           "--pipeline 5: 32 layers, or 34 with embedding and head, do not divide into as many stages; the nearest that "
           "works: --pipeline 4"},
          {"--pipeline 64",
           "--pipeline 64: more stages than 32 layers; the nearest that works: --pipeline 32"},
          {"--pipeline 4 --model deepseek-v3", ""},  // 61 layers, three of them without experts
          {"--pipeline 64 --model deepseek-v3", "--pipeline 64: more stages than 61 layers"},
          {"--pipeline 4 --virtual-stages 3",
           "--virtual-stages 3: 32 layers do not divide into 4 stages of as many groups; the nearest that works: "
           "--virtual-stages 2"},
          {"--pipeline 4 --virtual-stages 2 --micro-batches 6",
           "--micro-batches 6: an interleaved schedule needs a multiple of --pipeline 4; the nearest that works: "
           "--micro-batches 4"},
          {"--pipeline 4 --virtual-stages 2 --accumulation 2",
           "--accumulation 2: an interleaved schedule needs a multiple of --pipeline 4; the nearest that works: "
           "--accumulation 4"},
          {"--pipeline 63 --virtual-stages 2 --accumulation 16380 --model llama3.1-405b --gpus 63",
           "--accumulation 16380: with 63 stages of 2 groups more passes than the 1048576 that are simulated; the nearest "
           "that works: --accumulation 8316"},
          {"--pipeline 4 --context 3 --gpus 48",
           "--context 3: seq 4096 is not a multiple of 6, two chunks per rank"},
          {"--tensor 4 --pipeline 4 --gpus 60",
           "--gpus 60: not a multiple of 16, the ranks of a replica (tensor 4 x context 1 x pipeline 4); the nearest that "
           "works: --gpus 64"},
          {"--pipeline 4 --shard-optimizer on", ""},
          {"--pipeline 4 --shard-optimizer on --parallel hsdp --shard-group 8", ""},
          // Experts of 8 ranks have two replicas in a stage of 16.
          {"--pipeline 4 --shard-optimizer on --parallel fsdp --model qwen3-30b-a3b --ep 8 --exchange slots",
           ""},
          {"--pipeline 4 --shard-optimizer on --parallel fsdp",
           "--shard-optimizer on: no rank has a replica of its weights' shard; use --shard-optimizer off"},
          {"--tensor 4 --pipeline 4 --shard-optimizer on --gpus 16",
           "--shard-optimizer on: no rank has a replica of its weights; use --shard-optimizer off"},
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
