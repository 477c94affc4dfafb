// Compares the dry run with the closed form of the FLOPs and with the memory of a real run.
#include "bench/predict/predict.h"

#include <fmt/format.h>

#include <sstream>

#include "bench/case/case_testing.h"
#include "bench/case/plan.h"
#include "bench/measure/session.h"
#include "bench/step/rank_testing.h"
#include "kernels/base/errors.h"
#include "models/transformer/flops.h"
#include "models/transformer/state/shared_layout.h"

using namespace precbench;

namespace {

double closed_form(const Plan& plan) {
  return static_cast<double>(flops_per_token(plan.model, plan.T).total()) *
         static_cast<double>(plan.tokens_per_step()) / plan.ranks;
}

/// Compares sums of integers above 2^53, which doubles round differently in another order.
bool same_flops(double x, double y) { return std::fabs(x - y) <= 1e-12 * y; }

/// Returns what `kind` reports on every rank after one optimizer step on the CPU, in blocks of `extent`
/// bytes.
std::vector<MemoryUse> used(const Plan& plan, std::int64_t extent, MemoryUse (Arena::*kind)() const) {
  std::vector<MemoryUse> results(plan.ranks);
  run_cpu_ranks(plan, extent, [&](Rank& rank, const DataSource& data) {
    rank.prepare(data, 0, 0);  // only the tokens must be real: memory does not depend on values
    rank.enqueue();
    results[rank.comm().rank()] = (rank.arena().*kind)();
  });
  return results;
}

}  // namespace

TEST_CASE("dry_run: the step executes the FLOPs of the closed form", "[predict]") {
  for (const ModelConfig& model : model_presets()) {
    INFO(model.name);
    Case c;
    c.model = model.name;
    c.batch = 3;
    c.seq = 1024;  // the head's chunks do not divide 3072 tokens evenly
    const Plan plan = validate(c);
    CHECK(same_flops(dry_run(plan, nullptr).model_flops(), closed_form(plan)));
    c.recipe = "mxfp8";
    c.head = "recipe";
    c.gpus = 4;
    c.parallel = "fsdp";
    c.accumulation = 2;
    const Plan sharded = validate(c);
    CHECK(same_flops(dry_run(sharded, nullptr).model_flops(), closed_form(sharded)));
  }
}

TEST_CASE("dry_run: settings of a model with hundreds of experts share its layout", "[predict]") {
  Case c;
  c.device = "cuda";
  c.model = "kimi-k2";
  c.gpus = 24;  // as in no other test, so that no layout is there
  c.parallel = "fsdp";
  const std::int64_t before = layouts_made();
  std::int64_t made = 0;
  for (const char* recipe : {"bf16", "tensorwise"})
    for (const char* recompute : {"none", "block"}) {
      c.recipe = recipe, c.recompute = recompute;
      CHECK(dry_run(validate(c, Refusals::kept), nullptr).most() > 0);
      if (made == 0) made = layouts_made();
    }
  CHECK(made > before);
  CHECK(layouts_made() == made);  // only the first dry run made it
}

TEST_CASE("dry_run: at the embedding's gradient only its own inputs are alive", "[predict]") {
  Case c = testing::case_of_flags("--model llama3.1-8b --recipe tensorwise --batch 1 --seq 4096");
  c.master = c.moments = c.grads = "bf16";
  const Plan plan = validate(c);
  // This is the peak if activations are no larger than gradients.
  const MemoryUse peak = dry_run(plan, nullptr).peak;
  const auto bytes = [&](Segment segment) { return peak.bytes[static_cast<int>(segment)]; };
  CHECK(bytes(Segment::gradients) == bytes(Segment::weights));
  CHECK(bytes(Segment::activations) == plan.T * plan.model.width * 2);
}

TEST_CASE("dry_run: recomputation repeats a block's forward except for its last GEMM", "[predict]") {
  Case c;
  c.model = "llama3.2-1b";
  c.recompute = "block";
  const Plan plan = validate(c);
  const ModelConfig& m = plan.model;
  const double weights = static_cast<double>(active_matrix_parameters(m) - m.layers * m.width * m.ffn);
  const double attention = static_cast<double>(m.layers * plan.T * m.q_width());
  const double again = 2 * (weights + attention) * static_cast<double>(plan.tokens_per_step());
  CHECK(same_flops(dry_run(plan, nullptr).model_flops(), closed_form(plan) + again));
}

TEST_CASE("dry_run: recomputed parts repeat their GEMMs and no attention", "[predict]") {
  Case c;
  c.model = "llama3.2-1b";
  for (const char* recipe : {"bf16", "tensorwise"}) {
    c.recipe = recipe;
    c.recompute = "none";
    const Plan none = validate(c);
    const ModelConfig& m = none.model;
    const double tokens = static_cast<double>(none.tokens_per_step()), layers = static_cast<double>(m.layers),
                 qkv = 2 * layers * static_cast<double>(m.width * (m.q_width() + 2 * m.kv_width())) * tokens,
                 gate_up = 2 * layers * static_cast<double>(m.width * 2 * m.ffn) * tokens,
                 once = dry_run(none, nullptr).model_flops();
    CHECK(same_flops(once, closed_form(none)));
    const auto again = [&](const char* recompute) {
      c.recompute = recompute;
      return dry_run(validate(c), nullptr).model_flops() - once;
    };
    const auto near = [&](double x, double y) { return std::fabs(x - y) <= 1e-9 * once; };
    CHECK(near(again("norm"), 0));
    CHECK(near(again("ffn"), gate_up));
    CHECK(near(again("attention"), qkv));
    CHECK(near(again("norm+ffn+attention"), gate_up + qkv));
    CHECK(near(again("block:4"), again("block") * 4 / layers));
    CHECK(again("block") > gate_up + qkv);
  }
}

TEST_CASE("dry_run: recomputed parts take their bytes out of every block", "[predict]") {
  // The bytes that one more block keeps from forward to backward.
  const auto of_block = [](const char* recipe, const char* recompute) {
    const auto activations = [&](std::int64_t layers) {
      Case c;
      c.device = "cuda";
      c.model = "llama3.1-8b";
      c.recipe = recipe, c.recompute = recompute, c.layers = layers;
      c.seq = 2048, c.batch = 1;
      return dry_run(validate(c), nullptr).highest.bytes[static_cast<int>(Segment::activations)];
    };
    return (activations(12) - activations(8)) / 4;
  };
  const ModelConfig m = find_model("llama3.1-8b");
  const std::int64_t M = 2048, h = 2 * M * m.width, qkv = 2 * M * (m.q_width() + 2 * m.kv_width()),
                     gate_up = 2 * M * 2 * m.ffn, out = 2 * M * m.q_width(), scalars = M * (4 * m.heads + 8);
  const std::int64_t none = 4 * h + qkv + gate_up + out + scalars;
  CHECK(of_block("bf16", "none") == none);
  CHECK(of_block("bf16", "norm") == none - 2 * h);
  CHECK(of_block("bf16", "ffn") == none - gate_up);
  CHECK(of_block("bf16", "attention") == none - qkv);
  CHECK(of_block("bf16", "attention+ffn+norm") == 2 * h + out + scalars);
  CHECK(of_block("bf16", "block") == h + 4 * M);
  // In FP8 a norm's output is kept in one byte and its scale.
  for (const char* recipe : {"tensorwise", "mxfp8"}) {
    INFO(recipe);
    const std::int64_t saved = of_block(recipe, "none") - of_block(recipe, "norm");
    CHECK(saved >= h);
    CHECK(saved < h + h / 16);
  }
}

TEST_CASE("dry_run: a run uses the predicted memory to the byte", "[predict]") {
  for (const Recipe& recipe : builtin_recipes())
    for (const char* recompute : {"none", "block", "attention+ffn+norm"})
      for (const char* parallel : {"ddp", "fsdp"})
        for (const char* master : {"fp32", "bf16"}) {
          INFO(recipe.name << " recompute " << recompute << " " << parallel << " master " << master);
          Case c;
          c.device = "cpu";
          c.recipe = recipe.name;
          c.recompute = recompute;
          c.parallel = parallel;
          c.master = master;
          c.gpus = c.parallel == "fsdp" ? 2 : 1;
          c.batch = 4;
          c.seq = 32;
          const Plan plan = validate(c);
          const DryRun accounts = dry_run(plan, nullptr);
          for (const MemoryUse& use : used(plan, accounts.extent, &Arena::peak))
            CHECK(use.bytes == accounts.peak.bytes);
        }
}

TEST_CASE("dry_run: memory is predicted exactly for every other option", "[predict]") {
  struct Choice {
    const char *recipe, *changed;
    bool sharded = false;  ///< requires sharded ranks
    bool hsdp = true;
  };
  for (const auto& [recipe, changed, sharded, hsdp] :
       {Choice{"tensorwise", "accumulation=2"},
        {"tensorwise", "moments=bf16"},
        {"tensorwise", "grads=bf16"},
        {"tensorwise", "head=recipe"},
        {"tensorwise", "keep_bf16=first:1"},
        {"tensorwise", "master=bf16_sr"},
        {"tensorwise", "reduce_amax=on"},
        {"nvfp4_all", "accumulation=2"},
        {"nvfp4_all", "keep_bf16=first:1"},
        {"tensorwise", "gather=fp8", true},
        {"blockwise", "gather=fp8", true},
        {"mxfp8", "gather=fp8", true},
        {"tensorwise", "reshard=off", true},
        {"msamp_o2", "reshard=off", true, false},
        {"bf16", "master=fp16"},
        {"tensorwise", "weights=e4m3"},
        {"bf16", "grads=e4m3", false, false},
        {"msamp_o1", "accumulation=2", false, false},
        {"msamp_o2", "recompute=block", false, false},
        {"msamp_o2", "gather=fp8", true, false},
        {"msamp_o3", "accumulation=2", false, false},
        {"tensorwise", "kept=transformer_engine"},
        {"nvfp4_all", "kept=torchao_nvfp4 accumulation=2"},
        {"mxfp8", "kept=torchao recompute=norm"},
        {"tensorwise", "kept=transformer_engine recompute=ffn gather=fp8", true},
        {"rowwise", "kept=coat recompute=attention"},
        {"bf16", "recompute=norm"},
        {"tensorwise", "recompute=norm"},
        {"mxfp8", "recompute=ffn"},
        {"blockwise", "recompute=attention"},
        {"tensorwise", "recompute=block:2"},
        {"mxfp8", "recompute=norm gather=fp8", true},
        {"blockwise_pow2", "recompute=ffn+norm flow=on"},
        {"tensorwise", "model=tiny-moe-shared recompute=ffn"},
        {"bf16", "model=tiny-moe recompute=attention+ffn+norm"},
        {"bf16", "accumulation=3 grad_sync=last", true},
        {"mxfp8", "accumulation=2 grad_sync=last grads=bf16", true},
        {"tensorwise", "accumulation=2 grad_sync=last reshard=off gather=fp8", true}})
    for (const char* parallel : {"ddp", "fsdp", "hsdp"}) {
      if (sharded && std::string(parallel) == "ddp") continue;
      if (!hsdp && std::string(parallel) == "hsdp") continue;
      INFO(recipe << " " << changed << " " << parallel);
      Case c;
      c.recipe = recipe;
      c.batch = 2;
      c.seq = 64;
      c.parallel = parallel;
      c.gpus = c.parallel == "hsdp" ? 4 : 2;
      c.shard_group = c.parallel == "hsdp" ? 2 : 1;
      std::istringstream words(changed);
      for (std::string word; words >> word;) {
        const std::size_t equals = word.find('=');
        set_text(c, *find_field(word.substr(0, equals)), word.substr(equals + 1));
      }
      const Plan plan = validate(c);
      REQUIRE(!unsupported_reason(plan));
      const DryRun accounts = dry_run(plan, nullptr);
      for (const MemoryUse& use : used(plan, accounts.extent, &Arena::highest))
        CHECK(use.bytes == accounts.highest.bytes);
      // Not one byte less would suffice.
      CHECK_THROWS_AS(used(plan, accounts.extent - 1, &Arena::highest), OutOfMemory);
    }
}

TEST_CASE("predict: a sharded 405B model has the expected state per rank", "[predict]") {
  Case c = testing::case_of_flags("--model llama3.1-405b --seq 8192 --batch 1 --gpus 1024 --parallel fsdp");
  const Prediction p = predict(validate(c));
  CHECK(!p.unsupported);
  // 16 bytes per parameter (FP32 master, gradients and two moments: 4 + 4 + 8) over 1,024 ranks, padded to
  // whole shards.
  const double parameters = static_cast<double>(parameter_count(find_model(c.model)));
  const double state =
      static_cast<double>(p.memory.weights + p.memory.master + p.memory.gradients + p.memory.moments);
  CHECK(state >= 16 * parameters / 1024);
  CHECK(state <= 16 * parameters / 1024 * 1.001);
  CHECK(p.memory.peak <= p.memory.total);
  CHECK(p.flops_per_step == p.flops_per_token * 8192 * 1024);
}

TEST_CASE("predict: a time exists only if the recipe is native and the GPU's peaks are known", "[predict]") {
  // The CPU device has native BF16 GEMMs and emulates all others, like a GPU without FP8.
  const std::unique_ptr<Device> device = make_cpu_device(1);
  const KnownGpu known{*device, "NVIDIA H200"}, strange{*device, "NVIDIA X"};
  Case c;
  CHECK(!predict(validate(c)).seconds_per_step.has_value());
  CHECK(!predict(validate(c), &strange).seconds_per_step.has_value());
  CHECK(predict(validate(c), &known).seconds_per_step.value_or(0) > 0);
  c.recipe = "mxfp8";
  CHECK(!predict(validate(c), &known).seconds_per_step.has_value());
  const DatasheetRates old_gpu{312, std::nullopt, std::nullopt, 2039, "data sheet"};
  CHECK(op_rates(old_gpu, find_recipe("bf16")).has_value());
  CHECK(!op_rates(old_gpu, find_recipe("mxfp8")).has_value());
}

TEST_CASE("predict: an unsupported case has a reason", "[predict]") {
  Case c = testing::case_of_flags("--recipe mxfp8 --seq 100 --batch 1");
  CHECK(predict(validate(c)).unsupported.value_or("").find("M=100") != std::string::npos);
}

TEST_CASE("unsupported_reason: an FP8 gather either sends less than a BF16 gather or is refused for padding",
          "[predict]") {
  const auto plan_of = [](const char* model, const char* recipe, int ranks, const char* gather) {
    Case c;
    c.device = "cuda";
    c.model = model;
    c.recipe = recipe;
    c.parallel = "fsdp";
    c.gpus = ranks;
    c.gather = gather;
    return validate(c);
  };
  const auto wire_bytes = [](const Plan& plan) {
    double sum = 0;
    for (const OpCost& op : dry_run(plan, nullptr).ops())
      if (op.op_class == OpClass::communication) sum += op.bytes;
    return sum;
  };
  int taken = 0;
  for (const char* model : {"llama3.2-1b", "llama3.2-3b", "llama3.1-8b", "qwen2.5-7b"})
    for (const char* recipe : {"tensorwise", "blockwise", "mxfp8"})
      for (const int ranks : {2, 3, 4, 8, 16}) {
        INFO(model << " " << recipe << ", " << ranks << " ranks");
        const Plan fp8 = plan_of(model, recipe, ranks, "fp8");
        const auto why = unsupported_reason(fp8);
        if (!why) {
          CHECK(wire_bytes(fp8) < wire_bytes(plan_of(model, recipe, ranks, "bf16")));
          ++taken;
        } else {
          CHECK(std::string(recipe) != "tensorwise");
          CHECK(why->find("would be padded to ") != std::string::npos);
        }
      }
  CHECK(taken > 40);
  for (const char* recipe : {"blockwise", "mxfp8"}) {
    CHECK(!unsupported_reason(plan_of("llama3.1-8b", recipe, 8, "fp8")));
    CHECK(unsupported_reason(plan_of("llama3.1-8b", recipe, 16, "fp8")) ==
          "FP8 gather: for 16 shards to end where 128 rows of a matrix end, a block would be padded to 2.31 "
          "times its size, more than the 1.25 that pay");
  }
}

TEST_CASE("predict: sharded ranks reuse the buffers of whole units", "[predict]") {
  const auto plan_of = [](const char* model, const char* reshard, std::int64_t accumulation) {
    Case c;
    c.device = "cuda";
    c.model = model;
    c.seq = 2048;
    c.batch = 1;
    c.parallel = "fsdp";
    c.gpus = 4;
    c.reshard = reshard;
    c.accumulation = accumulation;
    return validate(c);
  };
  const auto gathered = [](const Plan& plan) {
    double sum = 0;
    for (const OpCost& op : dry_run(plan, nullptr).ops())
      if (op.name == std::string("all_gather")) sum += op.bytes;
    return sum;
  };
  for (const char* model : {"llama3.1-8b", "llama3.2-1b"}) {
    INFO(model);
    const Plan on = plan_of(model, "on", 1), off = plan_of(model, "off", 1);
    const Layout layout(on.model, 1);
    const std::int64_t block = layout.units()[layout.block_unit(0)].size,
                       edge = layout.units()[layout.head_unit()].size;
    const std::int64_t all = parameter_count(on.model);
    const MemorySegments m = predict(on).memory, kept = predict(off).memory;
    // Gradients take 4 bytes, weights 2. An untied head's gradient shares memory with that of the last block
    // but one, and the weights of the edges share it with the last block's gradient.
    const std::int64_t blocks = std::max(2 * edge, (on.model.tied ? 2 : 1) * 4 * block);
    const std::int64_t needed = 4 * edge + 2 * 2 * block + blocks;
    CHECK(m.communication >= needed);
    CHECK(m.communication < needed + needed / 100);
    CHECK(m.weights == 0);    // rounded from the master for every gather
    CHECK(m.peak < m.total);  // the shards of gradients come into use as activations are freed
    CHECK(kept.weights >= 2 * all);
    CHECK(kept.weights < 2 * all + all / 50);
    CHECK(kept.communication < m.communication);
    // Forward and backward gather the same, except the last block, which is still there, and a tied edge.
    CHECK(gathered(off) < 0.65 * gathered(on));
    CHECK(gathered(plan_of(model, "off", 4)) == gathered(off));
    CHECK(gathered(plan_of(model, "on", 4)) >
          3.4 * gathered(on));  // no buffers are shared then, and a tied edge stays gathered
  }
}

TEST_CASE("predict: whole gradients cost memory and save all but one reduction of a step", "[predict]") {
  Case c = testing::case_of_flags(
      "--device cuda --model llama3.1-8b --recipe tensorwise --seq 2048 --batch 1 --parallel fsdp --gpus 4 --accumulation 16");
  const auto bytes_of_ops = [](const Plan& plan, const std::string& name) {
    double sum = 0;
    for (const OpCost& op : dry_run(plan, nullptr).ops())
      if (op.name == name) sum += op.bytes;
    return sum;
  };
  for (const auto& [grads, name] : {std::pair{"fp32", "reduce_scatter"}, {"bf16", "reduce_scatter bf16"}}) {
    c.grads = grads;
    c.grad_sync = "every";
    const Plan every = validate(c);
    c.grad_sync = "last";
    const Plan last = validate(c);
    CHECK(bytes_of_ops(every, name) == 16 * bytes_of_ops(last, name));
    CHECK(bytes_of_ops(every, "add") > 0);
    CHECK(bytes_of_ops(last, "add") == 0);
    CHECK(bytes_of_ops(every, "all_gather") == bytes_of_ops(last, "all_gather"));
    const Layout layout(last.model, 4);
    const std::int64_t whole = bytes_of(last.parameters.gradients, 4 * layout.local_size());
    const MemorySegments m = predict(last).memory, before = predict(every).memory;
    CHECK(m.gradients == whole);
    CHECK(before.gradients == whole / 4);
    CHECK(m.communication < before.communication);
    CHECK(m.weights == before.weights);
  }
}

TEST_CASE("dry_run: a repeated token does not read or write its embedding row again", "[predict]") {
  Case c;  // tiny has 256 tokens
  const auto bytes_of_op = [&](std::int64_t batch, const std::string& name) {
    c.batch = batch;
    c.seq = 256;
    const Plan plan = validate(c);
    for (const OpCost& op : dry_run(plan, nullptr).ops())
      if (op.name == name) return op.bytes;
    return 0.0;
  };
  const double row = 2.0 * static_cast<double>(find_model(c.model).width), token = 4;
  // One sequence has as many tokens as there are rows. Of eight, seven only add their own part.
  for (const std::int64_t batch : {1, 8}) {
    const double tokens = 256.0 * static_cast<double>(batch);
    CHECK(bytes_of_op(batch, "embedding") == 256 * row + tokens * (row + token));
    const double gradient_row = 2 * row;  // FP32
    CHECK(bytes_of_op(batch, "embedding_backward") == 2 * 256 * gradient_row + tokens * (row + token));
  }
}

TEST_CASE("unsupported_reason: GPU shape limits are known without a GPU", "[predict]") {
  const auto why = [](const char* device, auto&& change) {
    Case c;
    c.device = device;
    Plan plan = validate(c);
    change(plan.model);
    return unsupported_reason(plan).value_or("");
  };
  const auto wide = [](ModelConfig& m) { m.width = 18432; };
  const auto odd_heads = [](ModelConfig& m) { m.head_dim = 24; };
  const auto normed = [](ModelConfig& m) { m.head_dim = 80, m.qk_norm = true; };
  CHECK(why("cuda", [](ModelConfig&) {}) == "");
  CHECK(why("cuda", wide).find("at most 16384, not 18432") != std::string::npos);
  CHECK(why("cuda", odd_heads).find("multiple of 16, not 24") != std::string::npos);
  CHECK(why("cuda", normed).find("power of two up to 512, not 80") != std::string::npos);
  CHECK(why("cpu", wide) == "");
  CHECK(why("cpu", odd_heads) == "");
  CHECK(why("cpu", normed) == "");
}
