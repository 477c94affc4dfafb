// Checks layouts that are only predicted. See layout_support.h.
#include "bench/case/layout_support.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "bench/case/case_words.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"

namespace precbench {
namespace {

constexpr const char* kLayoutFields[] = {"tensor",        "pipeline",        "virtual_stages",
                                         "micro_batches", "shard_optimizer", "overlap"};

/// Returns the value from 1 to `most` nearest to `value` that works, the smaller of two; null if none does.
template <class Works>
std::optional<std::int64_t> nearest_that_works(std::int64_t value, std::int64_t most, const Works& works) {
  for (std::int64_t off = 0; off < std::max(value, most); ++off)
    for (const std::int64_t near : {value - off, value + off})
      if (near >= 1 && near <= most && works(near)) return near;
  return std::nullopt;
}

std::string nearest_text(const char* flag, const std::optional<std::int64_t>& near) {
  return near ? fmt::format("; the nearest that works: {} {}", flag, *near) : "";
}

/// Returns true if ranks hold equal shares of the key heads, or each of them one that several ranks have.
bool divides_kv_heads(std::int64_t kv_heads, std::int64_t ranks) {
  return kv_heads % ranks == 0 || ranks % kv_heads == 0;
}

/// Returns what `ranks` tensor ranks do not divide, with its size; null if they divide all.
std::optional<std::string> undivided_by_tensor(const Plan& plan, std::int64_t ranks) {
  const ModelConfig& m = plan.model;
  struct Divided {
    const char* name;
    std::int64_t size;
  };
  for (const auto& [name, size] : {Divided{"heads", m.heads}, {"ffn", m.ffn}, {"vocab", m.vocab}})
    if (size % ranks != 0) return fmt::format("{} ({})", name, size);
  if (!divides_kv_heads(m.kv_heads, ranks)) return fmt::format("kv_heads ({})", m.kv_heads);
  const std::int64_t tokens = plan.T / plan.fields.context;
  if (tokens % ranks != 0)
    return fmt::format("the {} of a sequence that sequence parallelism divides", plural(tokens, "token"));
  return std::nullopt;
}

std::optional<std::string> expert_ranks_unsupported_reason(const Plan& plan) {
  const MoeConfig& moe = plan.model.moe;
  const Case& c = plan.fields;
  if (!moe || c.tensor == 1) return std::nullopt;
  if (moe.shared_ffn > 0)
    return fmt::format("--tensor {}: shared experts ({}) on tensor ranks are not predicted; use --tensor 1",
                       c.tensor, plan.model.name);
  const auto works = [&](std::int64_t ep) {
    return ep % c.tensor == 0 && moe.rule.experts % ep == 0 && c.gpus / c.pipeline % ep == 0;
  };
  if (c.ep == 1 || !works(c.ep))
    return fmt::format(
        "--tensor {}: expert ranks must be whole groups of tensor ranks that divide {} and the {} of a stage, not "
        "--ep {}{}",
        c.tensor, plural(moe.rule.experts, "expert"), plural(c.gpus / c.pipeline, "rank"), c.ep,
        nearest_text("--ep", nearest_that_works(c.ep, moe.rule.experts,
                                                [&](std::int64_t ep) { return ep > 1 && works(ep); })));
  if (plan.exchange.mode != ExchangeOptions::Mode::slots || c.slots > 0)
    return fmt::format(
        "--tensor {}: rows are predicted to travel to experts by all-to-all, as many as even routing sends; use "
        "--exchange slots without --slots",
        c.tensor);
  return std::nullopt;
}

std::optional<std::string> tensor_unsupported_reason(const Plan& plan) {
  const Case& c = plan.fields;
  const ModelConfig& m = plan.model;
  if (c.tensor == 1) return std::nullopt;
  const auto unpredicted = [&](const std::string& what) {
    return fmt::format("--tensor {}: {} is not predicted; use --tensor 1", c.tensor, what);
  };
  if (m.latent) return unpredicted("latent attention (MLA) on tensor ranks");
  if (m.block.residual != Residual::sequential)
    return unpredicted("a block with parallel residuals on tensor ranks");
  if (m.block.norms != NormPlace::before || m.norms_all_heads())
    return unpredicted("a norm on the output of a half, or on all heads together, on tensor ranks");
  if (plan.parameters.lora) return unpredicted("LoRA on tensor ranks");
  if (const auto undivided = undivided_by_tensor(plan, c.tensor)) {
    const auto divides = [&](std::int64_t ranks) { return !undivided_by_tensor(plan, ranks); };
    const auto fits = [&](std::int64_t ranks) {
      return divides(ranks) && c.gpus % (ranks * c.pipeline * c.context) == 0;
    };
    auto near = nearest_that_works(c.tensor, m.heads, fits);
    if (!near) near = nearest_that_works(c.tensor, m.heads, divides);
    return fmt::format("--tensor {}: does not divide {}{}", c.tensor, *undivided,
                       nearest_text("--tensor", near));
  }
  return expert_ranks_unsupported_reason(plan);
}

/// Returns true if stages with so many groups hold equal numbers of layers, or would if the embedding and the head
/// counted as a layer each.
bool divides_layers(std::int64_t layers, std::int64_t groups) {
  return groups <= layers && (layers % groups == 0 || (layers + 2) % groups == 0);
}

/// Returns true if blocks differ in experts or in their window: stages then hold numbers of layers that differ by one.
bool has_several_kinds(const Plan& plan) {
  const ModelConfig& m = plan.model;
  const auto window = [&](std::int64_t layer) {
    const std::int64_t keys = m.window(layer);
    return keys > 0 && keys < plan.T ? keys : plan.T;
  };
  for (std::int64_t layer = 1; layer < m.layers; ++layer)
    if (m.has_experts(layer) != m.has_experts(0) || window(layer) != window(0)) return true;
  return false;
}

/// Returns why the blocks of a stage cannot stand for those of another one; null if they can.
std::optional<std::string> unequal_blocks(const Plan& plan) {
  const ModelConfig& m = plan.model;
  for (std::int64_t layer = 1; layer < m.layers; ++layer)
    if (plan.converted[static_cast<std::size_t>(layer)] != plan.converted.front())
      return fmt::format("blocks of which {} leaves some in BF16", plan.recipe.name);
  if (plan.recompute != kRecomputeBlocks && plan.recompute.blocks > 0 && plan.recompute.blocks < m.layers)
    return fmt::format("blocks of which --recompute {} recomputes some", plan.fields.recompute);
  return std::nullopt;
}

std::optional<std::string> pipeline_unsupported_reason(const Plan& plan) {
  const Case& c = plan.fields;
  if (c.pipeline == 1) {
    if (c.virtual_stages > 1)
      return fmt::format("--virtual-stages {}: divides the layers of pipeline stages; add --pipeline N",
                         c.virtual_stages);
    if (c.micro_batches > 0)
      return fmt::format(
          "--micro-batches {0}: are those of a pipeline; add --pipeline N, or use --accumulation {0}",
          c.micro_batches);
    return std::nullopt;
  }
  if (c.micro_batches > 0 && c.accumulation != Case{}.accumulation && c.accumulation != c.micro_batches)
    return fmt::format(
        "--micro-batches {}: contradicts --accumulation {}: under a pipeline both are the micro-batches of a step; give "
        "one of them",
        c.micro_batches, c.accumulation);
  if (const auto what = unequal_blocks(plan))
    return fmt::format("--pipeline {}: {} are not predicted in stages; use --pipeline 1", c.pipeline, *what);
  const std::int64_t layers = plan.model.layers;
  const bool several_kinds = has_several_kinds(plan);
  const auto divides_into = [&](std::int64_t groups) {
    return several_kinds ? groups <= layers : divides_layers(layers, groups);
  };
  const auto near_stages = [&] {
    const auto divides = [&](std::int64_t stages) { return divides_into(stages * c.virtual_stages); };
    const auto fits = [&](std::int64_t stages) {
      return divides(stages) && c.gpus % (stages * c.tensor * c.context) == 0;
    };
    auto near = nearest_that_works(c.pipeline, layers, fits);
    if (!near) near = nearest_that_works(c.pipeline, layers, divides);
    return nearest_text("--pipeline", near);
  };
  if (c.pipeline > layers)
    return fmt::format("--pipeline {}: more stages than {}{}", c.pipeline, plural(layers, "layer"),
                       near_stages());
  if (!divides_into(c.pipeline))
    return fmt::format(
        "--pipeline {}: {}, or {} with embedding and head, do not divide into as many stages{}", c.pipeline,
        plural(layers, "layer"), layers + 2, near_stages());
  if (!divides_into(c.pipeline * c.virtual_stages)) {
    const auto near = nearest_that_works(
        c.virtual_stages, layers, [&](std::int64_t groups) { return divides_into(c.pipeline * groups); });
    return fmt::format("--virtual-stages {}: {} do not divide into {} stages of as many groups{}",
                       c.virtual_stages, plural(layers, "layer"), c.pipeline,
                       nearest_text("--virtual-stages", near));
  }
  const char* flag = micro_steps_flag(c);
  if (c.virtual_stages > 1 && plan.accumulation % c.pipeline != 0) {
    const auto near = nearest_that_works(plan.accumulation, kMaxAccumulation,
                                         [&](std::int64_t n) { return n % c.pipeline == 0; });
    return fmt::format("{} {}: an interleaved schedule needs a multiple of --pipeline {}{}", flag,
                       plan.accumulation, c.pipeline, nearest_text(flag, near));
  }
  const std::int64_t groups = c.pipeline * c.virtual_stages;
  if (plan.accumulation * groups > kMostPipelinePasses)
    return fmt::format("{} {}: with {} stages of {} groups more passes than the {} that are simulated{}",
                       flag, plan.accumulation, c.pipeline, c.virtual_stages, kMostPipelinePasses,
                       nearest_text(flag, kMostPipelinePasses / groups / c.pipeline * c.pipeline));
  return std::nullopt;
}

std::optional<std::string> sharded_optimizer_unsupported_reason(const Plan& plan) {
  const Case& c = plan.fields;
  if (c.shard_optimizer == "off" || has_optimizer_replicas(c, plan.model)) return std::nullopt;
  return fmt::format("--shard-optimizer on: no rank has a replica of its {}; use --shard-optimizer off",
                     c.parallel == "ddp" ? "weights" : "weights' shard");
}

}  // namespace

bool is_layout_field(std::string_view name) {
  return std::find(std::begin(kLayoutFields), std::end(kLayoutFields), name) != std::end(kLayoutFields);
}

bool is_predicted_only(const Case& c) {
  return c.tensor > 1 || c.pipeline > 1 || c.virtual_stages > 1 || c.micro_batches > 0 ||
         c.shard_optimizer != "off" || c.overlap != "none";
}

bool has_optimizer_replicas(const Case& c, const ModelConfig& model) {
  const std::int64_t ranks = c.gpus / (c.tensor * c.pipeline);
  const std::int64_t shards = c.parallel == "fsdp" ? ranks : c.parallel == "hsdp" ? c.shard_group : 1;
  return shards < ranks || (model.moe && c.ep > 1 && c.ep < ranks * c.tensor);
}

const char* micro_steps_flag(const Case& c) {
  return c.micro_batches > 0 ? "--micro-batches" : "--accumulation";
}

std::optional<std::string> predicted_only_reason(const Case& c) {
  if (!is_predicted_only(c)) return std::nullopt;
  for (const char* name : kLayoutFields)
    if (const Field& field = *find_field(name); get_text(c, field) != get_text(Case{}, field))
      return fmt::format("{} {}: predicted only, a run does not support it; use sweep --dry-run --on MACHINE",
                         flag_of(field), get_text(c, field));
  return std::nullopt;
}

void refuse_predicted_only(const std::vector<Plan>& cases) {
  for (const Plan& plan : cases)
    if (auto why = predicted_only_reason(plan.fields)) throw InvalidInput(*why);
}

std::optional<std::string> layout_unsupported_reason(const Plan& plan) {
  const Case& c = plan.fields;
  if (auto why = tensor_unsupported_reason(plan)) return why;
  if (auto why = pipeline_unsupported_reason(plan)) return why;
  if (c.context > 1 && plan.T % (2 * c.context) != 0)
    return fmt::format("--context {}: seq {} is not a multiple of {}, two chunks per rank", c.context, plan.T,
                       2 * c.context);
  const std::int64_t replica = c.tensor * c.context * c.pipeline;
  if (c.gpus % replica != 0)
    return fmt::format(
        "--gpus {}: not a multiple of {}, the ranks of a replica (tensor {} x context {} x pipeline {}){}",
        c.gpus, replica, c.tensor, c.context, c.pipeline,
        nearest_text("--gpus", std::max<std::int64_t>(1, (c.gpus + replica / 2) / replica) * replica));
  return sharded_optimizer_unsupported_reason(plan);
}

}  // namespace precbench
