// Two gradients of the same tokens, compared. See fidelity.h.
#include "bench/step/fidelity.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "bench/step/change_weights.h"
#include "bench/step/route_flips.h"

namespace precbench {
namespace {

constexpr std::int64_t kSums = 4;  // that ops::Correlate makes

/// A copy of this rank's gradient, to compare a later one with. All ranks take as much memory for it.
class KeptGradient {
 public:
  /// Takes room for it in the arena, or on the host, from where it comes back in pieces.
  KeptGradient(Rank& rank, ReferencePlace place) : device_(rank.device()) {
    const Parameters& parameters = rank.parameters();
    const auto push = [&](std::int64_t size) {
      return rank.arena().push(Segment::gradients, parameters.options().gradients, 1, size);
    };
    std::int64_t bytes = 0, largest = 0;
    auto part = (parts_ = parameters.gradient_parts()).begin();
    for (int u = 0; u < parameters.layout().unit_count(); ++u) {
      const Tensor unit = parameters.shard(u).gradient;
      const Tensor copy = place == ReferencePlace::device ? push(unit.size()) : Tensor{};
      for (std::size_t i = 0; i < parameters.layout().units()[u].parameters.size(); ++i, ++part)
        copies_.push_back(part->values.empty() ? Tensor{} : same_place(copy, unit, part->values));
      bytes += unit.bytes();
      largest = std::max(largest, unit.size());
    }
    if (place == ReferencePlace::device) return;
    staging_ = push(std::min(largest, kStagingBytes * 8 / bits_of(parameters.options().gradients)));
    host_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
  }

  void keep() {
    std::byte* waiting = host_.get();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Tensor& now = parts_[i].values;
      if (now.empty()) continue;
      if (!host_) {
        device_.convert({copies_[i], now});
      } else {
        device_.download(waiting, now);
        waiting += now.bytes();
      }
    }
  }

  /// sums f32 [parameters, 4]: of what the gradient is now and what it was.
  void correlate(const Tensor& sums) {
    const std::byte* waiting = host_.get();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Tensor out = sums.elements(static_cast<std::int64_t>(i) * kSums, kSums), &now = parts_[i].values;
      if (now.empty()) {
        device_.zero({out});
      } else if (!host_) {
        device_.correlate({out, now, copies_[i], false});
      } else {
        for (std::int64_t first = 0; first < now.size(); first += staging_.size()) {
          const std::int64_t count = std::min(staging_.size(), now.size() - first);
          const Tensor was = staging_.elements(0, count);
          device_.upload(was, waiting);
          device_.correlate({out, now.elements(first, count), was, first > 0});
          waiting += was.bytes();
        }
      }
    }
  }

 private:
  /// Where in the copy of a unit the elements are that `part` is in the unit.
  static Tensor same_place(const Tensor& copy, const Tensor& unit, const Tensor& part) {
    if (copy.empty()) return {};
    const std::int64_t bytes = part.as<std::byte>() - unit.as<std::byte>();
    return copy.elements(bytes * 8 / bits_of(unit.dtype), part.size());
  }

  Device& device_;
  std::vector<StateTensor> parts_;     // of the gradient, parameter by parameter
  std::vector<Tensor> copies_;         // of them on the device
  std::unique_ptr<std::byte[]> host_;  // or on the host, one behind the other
  Tensor staging_;
};

double gradient_by(Rank& rank, Transformer& transformer) {
  rank.forward_backward(transformer);
  rank.parameters().complete_all();
  return rank.loss();
}

}  // namespace

BatchFidelity compare_gradients(Rank& rank, const Plan& plan, ReferencePlace place) {
  Device& device = rank.device();
  Parameters& parameters = rank.parameters();
  const Scope probe(rank.arena());
  KeptChoices choices(rank, plan);
  Transformer bf16(device, rank.arena(), parameters, plan.model, plan.bf16_transformer());
  BatchFidelity result;
  result.bf16_loss = gradient_by(rank, bf16);
  choices.keep();
  // Only now, when the activations of BF16, which are the larger ones, are gone.
  const Scope scope(rank.arena());
  KeptGradient reference(rank, place);
  reference.keep();
  result.loss = gradient_by(rank, rank.transformer());
  result.route_flips = choices.flips();

  const auto count = static_cast<std::int64_t>(parameters.gradient_parts().size());
  const Tensor sums = rank.arena().push(Segment::other, DType::f32, count, kSums);
  reference.correlate(sums);
  if (parameters.sharded()) parameters.shard_comm().all_reduce(sums);
  std::vector<float> values(count * kSums);
  device.download(values.data(), sums);
  for (auto v = values.begin(); v != values.end(); v += kSums)
    result.parameters.push_back({v[0], v[1], v[2], v[3]});
  return result;
}

std::vector<Fidelity> measure_fidelity(Rank& rank, const Plan& plan, const DataSource& data,
                                       ReferencePlace place) {
  std::vector<Fidelity> results;
  DelayedScaling* delayed = rank.parameters().delayed();
  // Of the recipe that the run begins with, however many batches: a later one would hide in the mean.
  const std::int64_t last_step =
      plan.later.empty() ? plan.fields.fidelity_batches : plan.later.front().from - 1;
  const auto measure = [&](const std::string& name) {
    std::vector<BatchFidelity> batches;
    std::optional<DelayedScaling::Snapshot> before;
    if (delayed) before = delayed->snapshot();
    for (std::int64_t step = 0; step < plan.fields.fidelity_batches; ++step) {
      rank.prepare(data, step, 0);
      rank.use_layers_of(std::min(step, last_step));
      batches.push_back(compare_gradients(rank, plan, place));
      if (delayed)
        delayed->update(rank.comm());  // a batch's scales come from the batches before, as in training
    }
    if (delayed) delayed->restore(*before);
    results.push_back(summarize(name, rank.parameters().layout(), batches));
  };
  measure("none");
  for (const Stress& stress : plan.fidelity_stresses)
    under_stress(rank.parameters(), plan.model, stress, [&] { measure(to_text(stress)); });
  return results;
}

}  // namespace precbench
