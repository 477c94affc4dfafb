// Rules of predicted layouts: tensor and pipeline parallelism, a sharded optimizer and overlapped traffic. The rules of
// one rank's share, and of tensor ranks that run, are those of support_rules.cpp. See rules.h.
#include <fmt/format.h>

#include <algorithm>

#include "bench/case/rules.h"
#include "kernels/base/plural.h"

namespace precbench {
namespace {

using Why = std::optional<std::string>;

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

/// Returns what `ranks` tensor ranks do not divide, with its size; null if they divide all. `repeats_keys`: several ranks
/// may have the same key head.
Why undivided_by_tensor(const Plan& plan, std::int64_t ranks, bool repeats_keys) {
  const ModelConfig& m = plan.model;
  struct Divided {
    const char* name;
    std::int64_t size;
  };
  for (const auto& [name, size] : {Divided{"heads", m.heads}, {"ffn", m.ffn}, {"vocab", m.vocab}})
    if (size % ranks != 0) return fmt::format("{} ({})", name, size);
  if (m.kv_heads % ranks != 0 && !(repeats_keys && ranks % m.kv_heads == 0))
    return fmt::format("kv_heads ({})", m.kv_heads);
  const std::int64_t tokens = plan.T / plan.fields.context;
  if (tokens % ranks != 0)
    return fmt::format("the {} of a sequence that sequence parallelism divides", plural(tokens, "token"));
  return std::nullopt;
}

Why undivided_experts(const Plan& plan) {
  const MoeConfig& moe = plan.model.moe;
  const Case& c = plan.fields;
  if (!moe) return std::nullopt;
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
  return std::nullopt;
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

/// Checks the stages of a pipeline, and the micro-batches that they take.
Why undivided_layers(const Plan& plan) {
  const Case& c = plan.fields;
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
  const char* flag = c.micro_steps_flag();
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

Why without_replicas(const Plan& plan) {
  if (has_optimizer_replicas(plan.fields, plan.model)) return std::nullopt;
  return fmt::format("--shard-optimizer on: no rank has a replica of its {}; use --shard-optimizer off",
                     plan.fields.parallel == "ddp" ? "weights" : "weights' shard");
}

bool without_pipeline(const Plan& plan) { return plan.fields.pipeline == 1; }

constexpr Rule kLayoutRules[] = {
    {&Case::tensor,
     "--tensor {tensor}: latent attention (MLA) on tensor ranks is not predicted; use --tensor 1",
     [](const Plan& p) { return static_cast<bool>(p.model.latent); }},
    {&Case::tensor,
     "--tensor {tensor}: a block with parallel residuals on tensor ranks is not predicted; use --tensor 1",
     [](const Plan& p) { return p.model.block.residual != Residual::sequential; }},
    {&Case::tensor,
     "--tensor {tensor}: a norm on the output of a half, or on all heads together, on tensor ranks is not predicted; use "
     "--tensor 1",
     [](const Plan& p) { return p.model.block.norms != NormPlace::before || p.model.norms_all_heads(); }},
    {&Case::tensor, "--tensor {tensor}: LoRA on tensor ranks is not predicted; use --tensor 1",
     [](const Plan& p) { return static_cast<bool>(p.parameters.lora); }},
    {&Case::tensor, [](const Plan& p) { return undivided_model(p, true); }},
    {&Case::tensor,
     "--tensor {tensor}: shared experts ({model}) on tensor ranks are not predicted; use --tensor 1",
     [](const Plan& p) { return p.model.moe.shared_ffn > 0; }},
    {&Case::tensor, undivided_experts},
    {&Case::tensor,
     "--tensor {tensor}: rows are predicted to travel to experts by all-to-all, as many as even routing sends; use "
     "--exchange slots without --slots",
     [](const Plan& p) {
       return p.model.moe && (p.exchange.mode != ExchangeOptions::Mode::slots || p.fields.slots > 0);
     }},
    {&Case::virtual_stages,
     "--virtual-stages {virtual_stages}: divides the layers of pipeline stages; add --pipeline N",
     without_pipeline},
    {&Case::micro_batches,
     "--micro-batches {micro_batches}: are those of a pipeline; add --pipeline N, or use --accumulation "
     "{micro_batches}",
     without_pipeline},
    {&Case::micro_batches,
     "--micro-batches {micro_batches}: contradicts --accumulation {accumulation}: under a pipeline both are the "
     "micro-batches of a step; give one of them",
     [](const Plan& p) {
       return p.fields.accumulation != Case{}.accumulation && p.fields.accumulation != p.fields.micro_batches;
     }},
    {&Case::pipeline, undivided_layers},
    {&Case::context, undivided_chunks},
    {kEveryCase, undivided_ranks},
    {&Case::shard_optimizer, without_replicas},
};

}  // namespace

std::optional<std::string> undivided_model(const Plan& plan, bool repeats_keys) {
  const Case& c = plan.fields;
  const auto undivided = undivided_by_tensor(plan, c.tensor, repeats_keys);
  if (!undivided) return std::nullopt;
  const auto divides = [&](std::int64_t ranks) { return !undivided_by_tensor(plan, ranks, repeats_keys); };
  const auto fits = [&](std::int64_t ranks) {
    return divides(ranks) && c.gpus % (ranks * c.pipeline * c.context) == 0;
  };
  auto near = nearest_that_works(c.tensor, plan.model.heads, fits);
  if (!near) near = nearest_that_works(c.tensor, plan.model.heads, divides);
  return fmt::format("--tensor {}: does not divide {}{}", c.tensor, *undivided,
                     nearest_text("--tensor", near));
}

std::optional<std::string> undivided_ranks(const Plan& plan) {
  const Case& c = plan.fields;
  const std::int64_t replica = c.tensor * c.context * c.pipeline;
  if (c.gpus % replica == 0) return std::nullopt;
  return fmt::format(
      "--gpus {}: not a multiple of {}, the ranks of a replica (tensor {} x context {} x pipeline {}){}",
      c.gpus, replica, c.tensor, c.context, c.pipeline,
      nearest_text("--gpus", std::max<std::int64_t>(1, (c.gpus + replica / 2) / replica) * replica));
}

std::optional<std::string> tensor_hosts_reason(const Case& c, const std::vector<std::string>& hosts) {
  const auto host_of = [&](std::int64_t rank) {
    return hosts[static_cast<std::size_t>(rank * static_cast<std::int64_t>(hosts.size()) / c.gpus)];
  };
  // Tensor ranks are consecutive. Returns the first rank that is not on the host of its group's first rank.
  const auto first_apart = [&](std::int64_t tensor) {
    std::int64_t rank = 0;
    while (rank < c.gpus && host_of(rank) == host_of(rank - rank % tensor)) ++rank;
    return rank;
  };
  const std::int64_t apart = first_apart(c.tensor), first = apart - apart % c.tensor;
  if (apart == c.gpus) return std::nullopt;
  const Plan plan = validate(c);
  const auto near = nearest_that_works(c.tensor, c.tensor, [&](std::int64_t tensor) {
    return first_apart(tensor) == c.gpus && c.gpus % (tensor * c.context) == 0 &&
           !undivided_by_tensor(plan, tensor, false);
  });
  return fmt::format(
      "--tensor {}: tensor ranks exchange activations in every layer and must be on one host, but rank {} is on {} and rank "
      "{} on {}{}",
      c.tensor, first, host_of(first), apart, host_of(apart), nearest_text("--tensor", near));
}

std::optional<std::string> undivided_chunks(const Plan& plan) {
  const std::int64_t chunks = 2 * plan.fields.context;
  if (plan.T % chunks == 0) return std::nullopt;
  return fmt::format("--context {}: seq {} is not a multiple of {}, two chunks per rank", plan.fields.context,
                     plan.T, chunks);
}

bool has_optimizer_replicas(const Case& c, const ModelConfig& model) {
  const std::int64_t ranks = c.gpus / (c.tensor * c.pipeline);
  const std::int64_t shards = c.parallel == "fsdp" ? ranks : c.parallel == "hsdp" ? c.shard_group : 1;
  return shards < ranks || (model.moe && c.ep > 1 && c.ep < ranks * c.tensor);
}

std::span<const Rule> layout_rules() { return kLayoutRules; }

}  // namespace precbench
