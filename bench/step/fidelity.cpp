// Compares two gradients of the same tokens. See fidelity.h.
#include "bench/step/fidelity.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bench/case/trained_text.h"
#include "bench/step/change_weights.h"
#include "bench/step/route_flips.h"

namespace precbench {
namespace {

constexpr std::int64_t kSums = 4;  // per parameter, as in ops::Correlate

/// Installs a watcher of staged gradients during its lifetime.
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

/// A copy of this rank's gradient, to compare with a later one. All ranks use the same amount of memory for
/// it. For FP8 gradients it holds the values before the cast.
class GradientComparison::KeptGradient {
 public:
  /// Allocates the copy in the arena, or on the host, from where it is uploaded in pieces.
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

  /// True if gradients are cast to FP8: they must be copied during backward (keep_staged), before they are
  /// rounded.
  static bool is_cast(const Parameters& parameters) { return parameters.options().gradients == DType::e4m3; }

  void keep() {
    for (const Part& part : parts_) keep(part, part.now);
  }

  void keep_staged(int unit, const Tensor& gradient) {
    for (const Part& part : parts_)
      if (part.unit == unit) keep(part, gradient.elements(part.first, part.now.size()));
  }

  /// Writes sums f32 [parameters, 4] over the current gradient and the copy.
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
    Tensor now, scale;  // the gradient itself, and its scale if it is FP8
    int unit;
    std::int64_t first;    // first element, counted in the unit
    Tensor copy;           // on the device, if it is kept there
    std::int64_t waiting;  // first byte of the copy on the host
  };

  /// Returns the index of a part's first element within its unit.
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
  std::vector<Part> parts_;            // one per parameter
  std::unique_ptr<std::byte[]> host_;  // the whole copy, parameter after parameter
  Tensor staging_;                     // for uploads from the host
  Tensor decoded_;                     // f32: decoded FP8 gradients
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
  Transformer bf16(rank.device(), rank.arena(), parameters, plan.model,
                   plan.bf16_transformer(rank.comm().rank()));
  std::optional<KeptGradient>& reference = state_->reference;
  if (KeptGradient::is_cast(parameters)) {
    reference.emplace(rank, place);
    const WhileWatched watched(
        parameters, [&](int unit, const Tensor& gradient) { reference->keep_staged(unit, gradient); });
    bf16_loss_ = gradient_by(rank, bf16);
  } else {
    bf16_loss_ = gradient_by(rank, bf16);
  }
  state_->choices.keep();
  // Allocates only now that BF16's activations, which are larger than the recipe's, have been freed.
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

BatchOutputs over_ranks(Rank& rank, const BatchOutputs& own) {
  // Every rank fills its own row of a matrix of zeros, so that a sum over the ranks is exact.
  const int ranks = rank.comm().size();
  if (ranks == 1) return own;
  constexpr std::int64_t kNumbers = 5;
  std::vector<float> rows(static_cast<std::size_t>(ranks * kNumbers));
  const double numbers[kNumbers] = {own.tokens, own.log_probability, own.largest_log_probability,
                                    own.divergence, own.largest_divergence};
  std::copy(std::begin(numbers), std::end(numbers),
            rows.begin() + static_cast<std::ptrdiff_t>(rank.comm().rank() * kNumbers));
  const Scope scope(rank.arena());
  const Tensor all = rank.arena().push_uncounted(DType::f32, ranks, kNumbers);
  rank.device().upload(all, rows.data());
  rank.comm().all_reduce(all);
  rank.device().download(rows.data(), all);
  BatchOutputs sum;
  for (auto row = rows.begin(); row != rows.end(); row += kNumbers)
    sum += {row[0], row[1], row[2], row[3], row[4]};
  return sum;
}

namespace {

/// Held-out text to compare outputs on; null without --eval-data.
class HeldOutBatches {
 public:
  explicit HeldOutBatches(const Plan& plan) : plan_(plan) {
    if (!plan.fields.eval_data.empty()) data_ = open_held_out(plan.fields, plan.model);
  }
  explicit operator bool() const { return data_ != nullptr; }

  /// Uploads this rank's sequences of a batch. They start again at the end of the text.
  void prepare(Rank& rank, std::int64_t batch) const {
    const ParallelDims& dims = plan_.parameters.parallel;
    const std::int64_t B = plan_.B, ranks = dims.batch_ranks(), whole = data_->sequences(plan_.T);
    const std::int64_t mine = dims.batch_rank(rank.comm().rank());
    std::vector<std::uint64_t> sequences;
    for (std::int64_t b = 0; b < B; ++b)
      sequences.push_back(static_cast<std::uint64_t>(((batch * ranks + mine) * B + b) % whole));
    rank.prepare_sequences(*data_, sequences);
  }

 private:
  const Plan& plan_;
  std::unique_ptr<DataSource> data_;
};

}  // namespace

BatchOutputs compare_outputs(Rank& rank, const Plan& plan) {
  rank.parameters().begin_step();
  Transformer bf16(rank.device(), rank.arena(), rank.parameters(), plan.model,
                   plan.bf16_transformer(rank.comm().rank()));
  const std::vector<float> distances = rank.compare_outputs(rank.transformer(), bf16);
  BatchOutputs outputs;
  for (std::size_t i = 0; i < distances.size(); i += 2)
    if (rank.counted()[i / 2]) outputs.add(distances[i], distances[i + 1]);
  return over_ranks(rank, outputs);
}

std::vector<Fidelity> measure_fidelity(Rank& rank, const Plan& plan, const DataSource& data,
                                       ReferencePlace place) {
  std::vector<Fidelity> results;
  DelayedScaling* delayed = rank.parameters().delayed();
  // All batches use the recipe that the run begins with: a later one would disappear in the mean.
  const std::int64_t last_step =
      plan.later.empty() ? plan.fields.fidelity_batches : plan.later.front().from - 1;
  const HeldOutBatches held_out(plan);
  const auto measure = [&](const std::string& name, bool with_outputs) {
    std::vector<BatchFidelity> batches;
    std::vector<BatchOutputs> outputs;
    std::optional<DelayedScaling::Snapshot> before;
    if (delayed) before = delayed->snapshot();
    for (std::int64_t step = 0; step < plan.fields.fidelity_batches; ++step) {
      rank.prepare(data, step, 0);
      rank.use_layers_of(std::min(step, last_step));
      batches.push_back(compare_gradients(rank, plan, place));
      if (with_outputs) {
        if (held_out) held_out.prepare(rank, step);
        outputs.push_back(compare_outputs(rank, plan));
      }
      if (delayed) delayed->update();  // a batch's scales come from the batches before, as in training
    }
    if (delayed) delayed->restore(*before);
    results.push_back(summarize(name, rank.parameters().layout(), batches));
    if (with_outputs) results.back().outputs = summarize(outputs, static_cast<bool>(held_out));
  };
  measure("none", true);
  for (const Stress& stress : plan.fidelity_stresses)
    under_stress(rank.parameters(), plan.model, stress, [&] { measure(to_text(stress), false); });
  return results;
}

}  // namespace precbench
