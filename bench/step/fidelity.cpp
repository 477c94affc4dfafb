// Two gradients of the same tokens, compared. See fidelity.h.
#include "bench/step/fidelity.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include "bench/step/change_weights.h"

namespace precbench {
namespace {

constexpr std::int64_t kSums = 4;  // that ops::Correlate makes

/// A copy of this rank's gradient, to compare a later one with.
class KeptGradient {
 public:
  /// Takes room for it in the arena, or on the host, from where it comes back in pieces.
  KeptGradient(Rank& rank, ReferencePlace place)
      : device_(rank.device()), parts_(rank.parameters().gradient_parts()) {
    std::int64_t bytes = 0, largest = 0;
    for (const StateTensor& part : parts_) {
      bytes += part.values.bytes();
      largest = std::max(largest, part.values.size());
    }
    const DType dtype = parts_.front().values.dtype;
    const auto push = [&](std::int64_t size) {
      return rank.arena().push(Segment::gradients, dtype, 1, size);
    };
    if (place == ReferencePlace::host) {
      staging_ = push(std::min(largest, kStagingBytes / bytes_of(dtype, 1)));
      host_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
    } else {
      for (const StateTensor& part : parts_)
        copies_.push_back(part.values.empty() ? part.values : push(part.values.size()));
    }
  }

  void keep() {
    if (!host_) {
      for (std::size_t i = 0; i < parts_.size(); ++i)
        if (!parts_[i].values.empty()) device_.convert({copies_[i], parts_[i].values});
      return;
    }
    std::byte* waiting = host_.get();
    for (const StateTensor& part : parts_) {
      if (part.values.empty()) continue;
      device_.download(waiting, part.values);
      waiting += part.values.bytes();
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
  Device& device_;
  std::vector<StateTensor> parts_;
  std::vector<Tensor> copies_;         // on the device
  std::unique_ptr<std::byte[]> host_;  // or one behind the other on the host
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
  Transformer bf16(device, rank.arena(), parameters, plan.model, plan.bf16_transformer());
  BatchFidelity result;
  result.bf16_loss = gradient_by(rank, bf16);
  // Only now, when the activations of BF16, which are the larger ones, are gone.
  const Scope scope(rank.arena());
  KeptGradient reference(rank, place);
  reference.keep();
  result.loss = gradient_by(rank, rank.transformer());

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
  const auto measure = [&](const std::string& name) {
    std::vector<BatchFidelity> batches;
    for (std::int64_t step = 0; step < plan.fields.fidelity_batches; ++step) {
      rank.prepare(data, step, 0);
      batches.push_back(compare_gradients(rank, plan, place));
    }
    results.push_back(summarize(name, rank.parameters().layout(), batches));
  };
  measure("none");
  for (const Stress& stress : plan.fidelity_stresses)
    under_stress(rank.parameters(), plan.model, stress, [&] { measure(to_text(stress)); });
  return results;
}

}  // namespace precbench
