// Compares the expert choices of two passes on the host. See route_flips.h.
#include "bench/step/route_flips.h"

#include <algorithm>

namespace precbench {

KeptChoices::KeptChoices(Rank& rank, const Plan& plan) : rank_(rank), top_k_(plan.model.moe.rule.top_k) {
  Routers* routers = rank.parameters().routers();
  if (!routers) return;
  choices_ = rank.arena().push(Segment::other, DType::i32, routers->layers() * plan.accumulation,
                               plan.tokens_per_micro_step() * top_k_);
  routers->keep_choices(choices_);
}

KeptChoices::~KeptChoices() {
  if (Routers* routers = rank_.parameters().routers()) routers->keep_choices({});
}

std::vector<std::int32_t> KeptChoices::now() const {
  std::vector<std::int32_t> experts(static_cast<std::size_t>(choices_.size()));
  if (!experts.empty()) rank_.device().download(experts.data(), choices_);
  return experts;
}

void KeptChoices::keep() { kept_ = now(); }

std::vector<double> KeptChoices::flips() const {
  if (choices_.empty()) return {};
  const std::int64_t layers = rank_.parameters().routers()->layers(), slots = choices_.size() / layers;
  const std::vector<std::int32_t> experts = now();
  std::vector<float> shares;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    std::int64_t flipped = 0;
    for (std::int64_t i = layer * slots; i < (layer + 1) * slots; ++i) {
      const auto token = kept_.begin() + i / top_k_ * top_k_;
      flipped += std::find(token, token + top_k_, experts[i]) == token + top_k_;
    }
    shares.push_back(static_cast<float>(flipped) / static_cast<float>(slots));
  }
  const Scope scope(rank_.arena());
  const Tensor sums = rank_.arena().push(Segment::other, DType::f32, 1, layers);
  Comm& comm = rank_.comm();
  rank_.device().upload(sums, shares.data());
  if (comm.size() > 1) comm.all_reduce(sums);
  rank_.device().download(shares.data(), sums);
  std::vector<double> means(shares.begin(), shares.end());
  for (double& mean : means) mean /= comm.size();
  return means;
}

}  // namespace precbench
