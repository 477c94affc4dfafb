// Questions of layouts for tests, and searches of a single layout.
#pragma once

#include <string>

#include "bench/predict/layout_search.h"

namespace precbench {

/// Returns the question of a model cut to some layers, in BF16, with 32 sequences a step.
inline LayoutQuestion question_of(const std::string& model, std::int64_t layers, std::int64_t gpus) {
  LayoutQuestion question;
  question.c.device = "cuda";
  question.c.model = model;
  question.c.layers = layers;
  question.c.gpus = gpus;
  question.c.seq = 2048;
  question.global_batch = 32;
  question.memory = std::int64_t{70} << 30;
  return question;
}

/// Searches a space of one layout.
inline LayoutSearch search_one(const LayoutQuestion& question, const Case& c, const CostModel& cost_model) {
  LayoutSpace space;
  space.tensor = {c.tensor}, space.context = {c.context}, space.pipeline = {c.pipeline};
  space.virtual_stages = {c.virtual_stages}, space.batch = {c.batch}, space.ep = {c.ep};
  space.parallel = {c.parallel}, space.shard_optimizer = {c.shard_optimizer};
  space.reshard = {c.reshard}, space.grad_sync = {c.grad_sync};
  space.recompute = {c.recompute}, space.gather = {c.gather}, space.shard_group = {c.shard_group};
  return search_layouts(question, space, cost_model);
}

}  // namespace precbench
