// The training step of one rank. See rank.h.
#include "bench/step/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/errors.h"
#include "models/data/documents.h"
#include "models/transformer/routing/expected_load.h"

namespace precbench {
namespace {

Tensor push_other(Arena& arena, DType dtype, std::int64_t rows, std::int64_t cols) {
  return arena.push(Segment::other, dtype, rows, cols);
}

}  // namespace

Rank::Rank(Device& device, Comm& comm, const Plan& plan, void* block, std::int64_t capacity)
    : device_(device),
      comm_(comm),
      plan_(plan),
      layers_(&plan),
      arena_(block, capacity),
      parameters_(device, comm, arena_, plan.model, plan.parameters),
      tokens_(push_other(arena_, DType::i32, plan.accumulation * plan.tokens_per_micro_step(), 1)),
      targets_(push_other(arena_, DType::i32, plan.accumulation * plan.tokens_per_micro_step(), 1)),
      weights_(is_documents(plan.fields.data) ? push_other(arena_, DType::f32, tokens_.rows, 1) : Tensor{}),
      first_key_(plan.packs() ? push_other(arena_, DType::i32, tokens_.rows, 1) : Tensor{}),
      positions_(plan.packs() ? push_other(arena_, DType::i32, tokens_.rows, 1) : Tensor{}),
      counted_(tokens_.rows, 1),  // until the first upload: a dry run has none
      report_(push_other(arena_, DType::f32, 1, 2)),
      scalars_(push_other(arena_, DType::f32, 1, 4)),
      norm_squared_(push_other(arena_, DType::f32, 1, 1)),
      transformer_(device, arena_, parameters_, plan.model, transformer_options()) {
  const StepScalars none;  // the fidelity probe runs before the first step and may use stochastic rounding
  device_.upload(scalars_, &none);
  if (plan.routing.routing == Routing::learned) return;
  const std::int64_t M = plan.tokens_per_micro_step();
  const Tensor forced = push_other(arena_, DType::i32, M, plan.model.moe.rule.top_k);
  std::vector<std::int32_t> index =
      forced_experts(plan.routing.routing, plan.routing.exponent, plan.model.moe.rule, M);
  device_.upload(forced, index.data());
  parameters_.routers()->force(forced, std::move(index));
}

TransformerOptions Rank::transformer_options(const ConvertedLayers& layers) const {
  TransformerOptions options = transformer_options();
  options.recipe_of = [this, &layers](std::int64_t layer, LinearRole role) -> const Recipe& {
    return plan_.recipe_of(layers, layer, role);
  };
  return options;
}

TransformerOptions Rank::transformer_options() const {
  TransformerOptions options = plan_.transformer(comm_.rank());
  options.recipe_of = [this](std::int64_t layer, LinearRole role) -> const Recipe& {
    return plan_.recipe_of(*layers_, layer, role);
  };
  options.random_word = scalars_.elements(3, 1);  // StepScalars.seed
  return options;
}

bool Rank::use_layers_of(std::int64_t step) {
  const ConvertedLayers* now = &layers_at(plan_, step);
  bool other = std::exchange(layers_, now) != now;
  if (DelayedScaling* delayed = parameters_.delayed()) {
    const int was = delayed->current_micro_steps();
    delayed->set_current(current_micro_steps(plan_, step, plan_.accumulation));
    other = other || delayed->current_micro_steps() != was;
  }
  return other;
}

std::int64_t Rank::upload(const DataSource& data, const std::vector<std::uint64_t>& sequences) {
  const std::int64_t T = plan_.T, M = plan_.tokens_per_micro_step();
  const std::int64_t passes = std::ssize(sequences) / plan_.B, count = passes * M;
  std::vector<std::int32_t> tokens(count), targets(count), sequence(plan_.B * (T + 1));
  std::vector<std::uint8_t> marks(plan_.B * T);
  std::vector<std::int32_t> begins(plan_.B * T), first_key(count), positions(count);
  counted_.resize(count);
  const RowMap map = rows();
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    for (std::int64_t b = 0; b < plan_.B; ++b) {
      data.sequence(sequences[pass * plan_.B + b], T, sequence.data() + b * (T + 1));
      data.mark_counted(sequences[pass * plan_.B + b], T, marks.data() + b * T);
      data.mark_documents(sequences[pass * plan_.B + b], T, begins.data() + b * T);
    }
    for (std::int64_t row = 0; row < M; ++row) {
      const std::int64_t whole = map.of(row);
      const std::int64_t at = whole + whole / T;  // each sequence has T + 1 entries
      tokens[pass * M + row] = sequence[at];
      targets[pass * M + row] = sequence[at + 1];
      counted_[pass * M + row] = marks[whole];
      first_key[pass * M + row] = begins[whole];
      positions[pass * M + row] = static_cast<std::int32_t>(whole % T) - begins[whole];
    }
  }
  device_.upload(tokens_.slice_rows(0, count), tokens.data());
  device_.upload(targets_.slice_rows(0, count), targets.data());
  if (!first_key_.empty()) {
    device_.upload(first_key_.slice_rows(0, count), first_key.data());
    device_.upload(positions_.slice_rows(0, count), positions.data());
  }
  return count;
}

void Rank::prepare(const DataSource& data, std::int64_t step, double signal) {
  use_layers_of(step);
  const ParallelDims& dims = plan_.parameters.parallel;
  std::vector<std::uint64_t> sequences;
  for (int micro = 0; micro < plan_.accumulation; ++micro)
    for (std::int64_t b = 0; b < plan_.B; ++b)
      sequences.push_back(sequence_index(step, micro, plan_.accumulation, dims.batch_rank(comm_.rank()),
                                         dims.batch_ranks(), plan_.B, b));
  upload(data, sequences);
  if (!weights_.empty()) weigh(data, step);
  const StepScalars scalars = step_scalars(plan_.optimizer, step, optimizer_steps_before_);
  device_.upload(scalars_, &scalars);
  const float report[2] = {0.0f, static_cast<float>(signal)};
  device_.upload(report_, report);
}

void Rank::weigh(const DataSource& data, std::int64_t step) {
  const std::int64_t sequences = plan_.tokens_per_step() / plan_.T;
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < sequences; ++i)
    counted += data.counted_targets(static_cast<std::uint64_t>(step * sequences + i), plan_.T);
  const float weight = static_cast<float>(plan_.tokens_per_step()) / static_cast<float>(counted);
  std::vector<float> weights(counted_.size());
  std::transform(counted_.begin(), counted_.end(), weights.begin(),
                 [&](std::uint8_t has_loss) { return has_loss ? weight : 0.0f; });
  device_.upload(weights_, weights.data());
}

void Rank::forward_backward(Transformer& transformer) {
  const std::int64_t M = plan_.tokens_per_micro_step();
  const float scale = 1.0f / static_cast<float>(plan_.tokens_per_step());
  const Tensor loss_sum = {report_.data, DType::f32, 1, 1};
  parameters_.begin_step();
  for (int micro = 0; micro < plan_.accumulation; ++micro) {
    if (runs_micro_step_ && !runs_micro_step_(micro)) continue;
    parameters_.begin_micro_step(micro);
    transformer.forward_backward(loss_sum, inputs(micro * M, M),
                                 Targets{targets_, weights_}.slice_rows(micro * M, M), scale, micro);
  }
}

double Rank::loss() {
  comm_.all_reduce(report_);
  float report[2] = {};
  device_.download(report, report_);
  return report[0] / static_cast<double>(plan_.tokens_per_step());
}

std::vector<float> Rank::token_losses(Transformer& transformer, const DataSource& data,
                                      const std::vector<std::uint64_t>& sequences) {
  const std::int64_t count = upload(data, sequences);
  const Scope scope(arena_);
  const Tensor losses = arena_.push(Segment::activations, DType::f32, count, 1);
  transformer.forward(losses, inputs(0, count), {targets_.slice_rows(0, count)});
  std::vector<float> values(count);
  device_.download(values.data(), losses);
  return values;
}

std::vector<float> Rank::compare_outputs(Transformer& transformer, Transformer& bf16) {
  const Scope scope(arena_);
  return compare_outputs(transformer, push_features(bf16));
}

Tensor Rank::push_features(Transformer& bf16) {
  const std::int64_t M = plan_.tokens_per_micro_step();
  const Tensor features = arena_.push(Segment::activations, DType::bf16, M, plan_.model.width);
  bf16.forward_features(features, inputs(0, M));
  return features;
}

std::vector<float> Rank::compare_outputs(Transformer& transformer, const Tensor& features) {
  const std::int64_t M = plan_.tokens_per_micro_step();
  const Scope scope(arena_);
  const Tensor distances = arena_.push(Segment::activations, DType::f32, M, 2);
  transformer.compare_outputs(distances, features, inputs(0, M), {targets_.slice_rows(0, M)});
  std::vector<float> values(static_cast<std::size_t>(2 * M));
  device_.download(values.data(), distances);
  return values;
}

void Rank::enqueue() {
  forward_backward();  // reductions may still be running
  optimizer_step(device_, parameters_, scalars_, norm_squared_, plan_.optimizer);
  if (DelayedScaling* delayed = parameters_.delayed()) delayed->update();
  if (Routers* routers = parameters_.routers(); routers && parameters_.trains_model()) routers->update(comm_);
  comm_.all_reduce(report_);
}

RunPosition Rank::position(std::int64_t step) const {
  return {step, step * plan_.accumulation * plan_.parameters.parallel.batch_ranks() * plan_.B, plan_.seed,
          optimizer_steps_before_};
}

std::int64_t Rank::continue_from(const RunPosition& saved, const StateReader& read) {
  const RunPosition here = position(saved.step);
  if (saved.seed != here.seed)
    throw InvalidInput(
        fmt::format("state: it was saved by a run of seed {}, this one has {}", saved.seed, here.seed));
  if (saved.sequences != here.sequences)
    throw InvalidInput(
        fmt::format("state: its {} steps have read {} sequences, this run's would have read {}", saved.step,
                    saved.sequences, here.sequences));
  parameters_.load_state(read);
  optimizer_steps_before_ = saved.optimizer_steps_before;
  return saved.step;
}

void Rank::fork_from(const RunPosition& saved, const StateReader& read) {
  parameters_.load_state(read, false);
  optimizer_steps_before_ = saved.optimizer_steps_before + saved.step;
}

double Rank::sum_over_ranks(double value) {
  float report[2] = {static_cast<float>(value), 0};
  device_.upload(report_, report);
  comm_.all_reduce(report_);
  device_.download(report, report_);
  return report[0];
}

StepResult Rank::finish() {
  float report[2] = {}, norm_squared = 0;
  device_.download(report, report_);
  device_.download(&norm_squared, norm_squared_);
  return {report[0] / static_cast<double>(plan_.tokens_per_step()),
          std::sqrt(static_cast<double>(norm_squared)), report[1]};
}

}  // namespace precbench
