// Two gradients of the same tokens, compared. See fidelity.h.
#include "bench/step/fidelity.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bench/step/change_weights.h"
#include "bench/step/route_flips.h"

namespace precbench {
namespace {

constexpr std::int64_t kSums = 4;  // that ops::Correlate makes

/// Has a watcher called as long as it lives.
class WhileWatched {
 public:
  WhileWatched(Parameters& parameters, Parameters::StagedWatcher watcher) : parameters_(parameters) {
    parameters_.watch_staged(std::move(watcher));
  }
  ~WhileWatched() { parameters_.watch_staged({}); }
  WhileWatched(const WhileWatched&) = delete;
  WhileWatched& operator=(const WhileWatched&) = delete;

 private:
  Parameters& parameters_;
};

double gradient_by(Rank& rank, Transformer& transformer) {
  rank.forward_backward(transformer);
  rank.parameters().complete_all();
  return rank.loss();
}

}  // namespace

/// A copy of this rank's gradient, to compare a later one with. All ranks take as much memory for it. Where gradients are kept
/// in FP8 it is what they were before their cast.
class GradientComparison::KeptGradient {
 public:
  /// Takes room for it in the arena, or on the host, from where it comes back in pieces.
  KeptGradient(Rank& rank, ReferencePlace place)
      : device_(rank.device()), parameters_(rank.parameters()), cast_(is_cast(parameters_)) {
    const DType dtype = cast_ ? DType::bf16 : parameters_.options().gradients;
    const auto push = [&](DType type, std::int64_t size) {
      return rank.arena().push(Segment::gradients, type, 1, size);
    };
    std::int64_t bytes = 0, largest = 0;
    const std::vector<StateTensor> now = parameters_.gradient_parts();
    auto part = now.begin();
    for (int u = 0; u < parameters_.layout().unit_count(); ++u) {
      const Tensor unit = parameters_.shard(u).gradient;
      const Tensor copy = place == ReferencePlace::device ? push(dtype, unit.size()) : Tensor{};
      for (std::size_t i = 0; i < parameters_.layout().units()[u].parameters.size(); ++i, ++part) {
        const std::int64_t first = part->values.empty() ? 0 : place_in(unit, part->values);
        parts_.push_back({.now = part->values,
                          .scale = parameters_.gradient_scale(u, i),
                          .unit = u,
                          .first = first,
                          .copy = copy.empty() ? Tensor{} : copy.elements(first, part->values.size()),
                          .waiting = bytes});
        bytes += part->values.size() * bits_of(dtype) / 8;
      }
      largest = std::max(largest, unit.size());
    }
    if (cast_) decoded_ = push(DType::f32, std::min(largest, kStagingBytes / 4));
    if (place == ReferencePlace::device) return;
    staging_ = push(dtype, std::min(largest, cast_ ? decoded_.size() : kStagingBytes * 8 / bits_of(dtype)));
    host_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
  }

  /// Whether it has to be kept while backward runs (keep_staged), as what is left of it then is rounded.
  static bool is_cast(const Parameters& parameters) { return parameters.options().gradients == DType::e4m3; }

  void keep() {
    for (const Part& part : parts_) keep(part, part.now);
  }

  void keep_staged(int unit, const Tensor& gradient) {
    for (const Part& part : parts_)
      if (part.unit == unit) keep(part, gradient.elements(part.first, part.now.size()));
  }

  /// sums f32 [parameters, 4]: of what the gradient is now and what it was.
  void correlate(const Tensor& sums) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      const Tensor out = sums.elements(static_cast<std::int64_t>(i) * kSums, kSums);
      if (part.now.empty()) {
        device_.zero({out});
        continue;
      }
      const std::int64_t run = host_ ? staging_.size() : cast_ ? decoded_.size() : part.now.size();
      for (std::int64_t first = 0; first < part.now.size(); first += run) {
        const std::int64_t count = std::min(run, part.now.size() - first);
        device_.correlate({out, now(part, first, count), before(part, first, count), first > 0});
      }
    }
  }

 private:
  struct Part {
    Tensor now, scale;  // the gradient's own place, and where it is codes, their scale
    int unit;
    std::int64_t first;    // in the unit
    Tensor copy;           // on the device
    std::int64_t waiting;  // or on the host, from this byte on
  };

  /// Which element of a unit a part of it begins with.
  static std::int64_t place_in(const Tensor& unit, const Tensor& part) {
    return (part.as<std::byte>() - unit.as<std::byte>()) * 8 / bits_of(unit.dtype);
  }

  void keep(const Part& part, const Tensor& gradient) {
    if (gradient.empty()) return;
    if (host_)
      device_.download(host_.get() + part.waiting, gradient);
    else
      device_.convert({part.copy, gradient});
  }

  Tensor now(const Part& part, std::int64_t first, std::int64_t count) {
    const Tensor kept = part.now.elements(first, count);
    if (!cast_) return kept;
    device_.decode({decoded_.elements(0, count), kept, part.scale});
    return decoded_.elements(0, count);
  }

  Tensor before(const Part& part, std::int64_t first, std::int64_t count) {
    if (!host_) return part.copy.elements(first, count);
    const Tensor was = staging_.elements(0, count);
    device_.upload(was, host_.get() + part.waiting + first * bits_of(was.dtype) / 8);
    return was;
  }

  Device& device_;
  Parameters& parameters_;
  bool cast_;
  std::vector<Part> parts_;            // parameter by parameter
  std::unique_ptr<std::byte[]> host_;  // all of them, one behind the other
  Tensor staging_;                     // on their way back
  Tensor decoded_;                     // f32: what codes stand for
};

struct GradientComparison::State {
  State(Rank& rank, const Plan& plan) : probe(rank.arena()), choices(rank, plan) {}

  const Scope probe;
  KeptChoices choices;
  std::optional<KeptGradient> reference;
};

GradientComparison::GradientComparison(Rank& rank, const Plan& plan, ReferencePlace place)
    : rank_(rank), state_(std::make_unique<State>(rank, plan)) {
  Parameters& parameters = rank.parameters();
  Transformer bf16(rank.device(), rank.arena(), parameters, plan.model, plan.bf16_transformer());
  std::optional<KeptGradient>& reference = state_->reference;
  if (KeptGradient::is_cast(parameters)) {
    reference.emplace(rank, place);
    const WhileWatched watched(parameters, [&](int unit, const Tensor& gradient) {
      reference->keep_staged(unit, gradient);
    });
    bf16_loss_ = gradient_by(rank, bf16);
  } else {
    bf16_loss_ = gradient_by(rank, bf16);
  }
  state_->choices.keep();
  // Only now, when the activations of BF16, which are the larger ones, are gone.
  if (!reference) {
    reference.emplace(rank, place);
    reference->keep();
  }
}

GradientComparison::~GradientComparison() = default;

BatchFidelity GradientComparison::with(Transformer& transformer) {
  Parameters& parameters = rank_.parameters();
  BatchFidelity result;
  result.bf16_loss = bf16_loss_;
  result.loss = gradient_by(rank_, transformer);
  result.route_flips = state_->choices.flips();

  const Scope scope(rank_.arena());
  const auto count = static_cast<std::int64_t>(parameters.gradient_parts().size());
  const Tensor sums = rank_.arena().push(Segment::other, DType::f32, count, kSums);
  state_->reference->correlate(sums);
  if (parameters.sharded()) parameters.shard_comm().all_reduce(sums);
  std::vector<float> values(count * kSums);
  rank_.device().download(values.data(), sums);
  for (auto v = values.begin(); v != values.end(); v += kSums)
    result.parameters.push_back({v[0], v[1], v[2], v[3]});
  return result;
}

BatchFidelity compare_gradients(Rank& rank, const Plan& plan, ReferencePlace place) {
  return GradientComparison(rank, plan, place).with(rank.transformer());
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
      if (delayed) delayed->update();  // a batch's scales come from the batches before, as in training
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
