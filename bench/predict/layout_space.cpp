// Spans the space of layouts. See layout_space.h.
#include "bench/predict/layout_space.h"

#include <algorithm>
#include <iterator>

#include "kernels/base/parse_number.h"

namespace precbench {
namespace {

constexpr std::int64_t kMostTensor = 16, kMostExpertRanks = 256, kMostBatch = 16, kMostVirtualStages = 16;
/// Tokens of a sequence that a context rank has at least: with fewer, GEMMs are too short to be worth a rank.
constexpr std::int64_t kLeastTokens = 1024;

std::vector<std::int64_t> powers_of_two(std::int64_t most) {
  std::vector<std::int64_t> powers;
  for (std::int64_t n = 1; n <= most; n *= 2) powers.push_back(n);
  return powers;
}

std::int64_t domain_of(const Machine& machine, std::int64_t gpus) {
  const std::int64_t domain = machine.levels.empty() ? 1 : machine.levels.front().gpus;
  return domain == 0 ? gpus : std::min(domain, gpus);
}

std::vector<std::int64_t> integers(const std::vector<std::string>& words) {
  std::vector<std::int64_t> values;
  for (const std::string& word : words) values.push_back(parse_number<std::int64_t>(word).value());
  return values;
}

}  // namespace

bool is_searched(std::string_view field) {
  return std::find(std::begin(kSearchedFields), std::end(kSearchedFields), field) !=
         std::end(kSearchedFields);
}

LayoutSpace layout_space(const LayoutQuestion& question, const ModelConfig& model, const Machine& machine) {
  const Case& c = question.c;
  const std::int64_t domain = domain_of(machine, c.gpus);
  LayoutSpace space;
  const bool whole_heads = model.latent || model.block.residual != Residual::sequential;
  space.tensor = whole_heads ? std::vector<std::int64_t>{1}
                             : powers_of_two(std::min({domain, kMostTensor, model.heads}));
  space.context = powers_of_two(std::min(c.gpus, std::max<std::int64_t>(1, c.seq / kLeastTokens)));
  for (std::int64_t n = 1; n <= std::min(model.layers, c.gpus); ++n)
    if (c.gpus % n == 0) space.pipeline.push_back(n);
  for (std::int64_t n = 1; n <= std::min(model.layers, kMostVirtualStages); ++n)
    space.virtual_stages.push_back(n);
  space.batch = powers_of_two(std::min(kMostBatch, question.global_batch));
  space.ep = {1};
  if (model.moe) {
    space.ep.clear();
    for (const std::int64_t n : powers_of_two(std::min({kMostExpertRanks, c.gpus, model.moe.rule.experts})))
      if (model.moe.rule.experts % n == 0) space.ep.push_back(n);
  }
  space.parallel = {"ddp", "fsdp", "hsdp"};
  space.shard_optimizer = {"off", "on"};
  for (std::int64_t group = std::min<std::int64_t>(8, domain); group < c.gpus; group *= 4)
    space.shard_group.push_back(group);
  space.grad_sync = {"every", "last"};
  space.reshard = {"on", "off"};
  space.recompute = {"none", "norm", "ffn+norm", "attention+ffn+norm", "selective", "block"};
  space.gather = {"bf16"};
  return space;
}

void restrict_space(LayoutSpace& space, const LayoutQuestion& question) {
  static const std::map<std::string, std::vector<std::int64_t> LayoutSpace::*> kNumbers = {
      {"tensor", &LayoutSpace::tensor},
      {"context", &LayoutSpace::context},
      {"pipeline", &LayoutSpace::pipeline},
      {"virtual_stages", &LayoutSpace::virtual_stages},
      {"batch", &LayoutSpace::batch},
      {"ep", &LayoutSpace::ep},
      {"shard_group", &LayoutSpace::shard_group}};
  static const std::map<std::string, std::vector<std::string> LayoutSpace::*> kWords = {
      {"parallel", &LayoutSpace::parallel},   {"shard_optimizer", &LayoutSpace::shard_optimizer},
      {"reshard", &LayoutSpace::reshard},     {"grad_sync", &LayoutSpace::grad_sync},
      {"recompute", &LayoutSpace::recompute}, {"gather", &LayoutSpace::gather}};
  for (const auto& [field, values] : question.given) {
    if (const auto number = kNumbers.find(field); number != kNumbers.end())
      space.*number->second = integers(values);
    else
      space.*kWords.at(field) = values;
  }
}

}  // namespace precbench
