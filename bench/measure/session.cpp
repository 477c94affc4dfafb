// Runs one case inside its process: builds the ranks, trains and takes samples. In order:
//   before   opens data, weights and checkpoints; prediction, support and environment
//   train    every rank in its thread: steps until the sampler has enough, recording loss and gradient norm;
//            between steps the held-out loss and checkpoints
//   after    writes weights, then runs the probes (probes.h)
// Measurements go to the record builder.
#include "bench/measure/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "bench/case/plan.h"
#include "bench/case/trained_text.h"
#include "bench/machine/environment.h"
#include "bench/machine/host_memory.h"
#include "bench/machine/verification.h"
#include "bench/measure/metrics.h"
#include "bench/measure/probes.h"
#include "bench/measure/record_builder.h"
#include "bench/measure/sampler.h"
#include "bench/measure/sampling_watch.h"
#include "bench/predict/predict.h"
#include "bench/step/checkpoint.h"
#include "bench/step/held_out.h"
#include "bench/step/lost_files.h"
#include "bench/step/rank.h"
#include "bench/step/rank_threads.h"
#include "bench/step/step_runner.h"
#include "bench/step/weights.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "kernels/device/devices.h"
#include "kernels/gpu/device_info.h"
#include "models/data/data_doubts.h"
#include "models/data/documents.h"

namespace precbench {
namespace {

class Session {
 public:
  Session(const Plan& plan, const NodeShare& share, StepBoard* board, Record& record)
      : plan_(plan),
        case_(plan_.fields),
        checkpoint_steps_(checkpoint_steps(case_)),
        share_(share),
        board_(board),
        record_(record),
        builder_(plan_, share, record),
        verification_(verification_of(plan_, share)) {}

  void run();
  /// Returns the warning for the first checkpoint that could not be written; null if there is none.
  const std::optional<std::string>& lost_checkpoint() const { return lost_checkpoint_; }

 private:
  std::unique_ptr<Device> make_device(int rank) const {
    return plan_.on_gpu ? make_gpu_device(share_.first_gpu + rank - share_.first, gpu_options())
                        : make_cpu_device(std::max(1, threads_ / share_.local));
  }
  /// Deterministic runs need the same algorithms every time, which autotuning does not guarantee.
  GpuOptions gpu_options() const {
    return without_demoted({.autotune = !plan_.deterministic,
                            .deterministic = plan_.deterministic,
                            .attention = case_.attention,
                            .gemm = case_.gemm},
                           verification());
  }
  const Verification* verification() const { return verification_ ? &*verification_ : nullptr; }
  /// Returns the verification of this process's first GPU; null on the CPU.
  static std::optional<Verification> verification_of(const Plan& plan, const NodeShare& share) {
    if (!plan.on_gpu || find_gpus().count <= share.first_gpu) return std::nullopt;
    return read_verification(verified_machine(gpu_properties(share.first_gpu)));
  }
  void check_gpus() const;
  void choose_by_memory(const Device& device);
  void check_host_memory() const;
  void open_checkpoints();
  std::vector<std::string> data_read_again(const DataSource& data, std::size_t steps) const;
  void run_rank(int rank, CommGroup& group);
  std::int64_t set_state(Rank& rank);
  std::int64_t go_on(Rank& rank) const;
  void train(Rank& rank, std::int64_t begin);
  /// Runs work between two steps, outside the step times and the host's clock. `what`: the rank's activity on
  /// the board.
  void between_steps(Rank& rank, const char* what, const std::function<void()>& work);
  /// Evaluates the held-out loss if it is due after `steps` steps.
  void evaluate(Rank& rank, std::int64_t steps, bool last);
  void first_step_done(Rank& rank, std::int64_t step, const std::vector<std::uint64_t>& before);
  void save_checkpoint(Rank& rank, std::int64_t steps);
  void finish_training(Rank& rank, const Sampler& sampler);
  enum class Order : std::uint8_t { forward, backward };
  static std::optional<std::string> first_not_finite(Rank& rank, Parameters::Kind kind, Order order);
  std::optional<std::string> bad_first_weight(Rank& rank);
  std::optional<std::string> bad_router(Rank& rank) const;
  [[noreturn]] void throw_diverged(Rank& rank, std::int64_t step, const StepResult& result);

  Plan plan_;
  const Case& case_;
  const std::vector<std::int64_t> checkpoint_steps_;
  const NodeShare& share_;
  StepBoard* board_;
  const Record& record_;
  RecordBuilder builder_;
  int threads_ = openmp_threads();
  const std::optional<Verification> verification_;
  std::unique_ptr<DataSource> data_;
  std::optional<HeldOut> held_out_;
  std::unique_ptr<InitialWeights> initial_;
  std::unique_ptr<Checkpoint> trunk_, last_;  // trunk to fork from, and checkpoint to resume from
  std::int64_t begin_ = 0;                    // first step; set before ranks start to train
  std::optional<std::string> lost_checkpoint_;  // rank 0: the warning for the first that was not written
  DryRun accounts_;
  std::optional<SamplingWatch> watch_;
};

void Session::check_gpus() const {
  if (!plan_.on_gpu || find_gpus().count >= share_.first_gpu + share_.local) return;
  throw Unsupported(
      fmt::format("{} requested, {}", plural(share_.local, "GPU"),
                  find_gpus().count ? fmt::format("{} visible", find_gpus().count) : find_gpus().reason));
}

/// --reshard auto and --grad-sync auto: weights stay gathered, then gradients stay whole, if that leaves a
/// tenth of the memory free. Weights come first: a byte of them saves two gathers in every micro-step, a byte
/// of gradients one reduction. Uses the GPUs' total memory, so that every process decides alike; the GPUs of
/// all nodes must be of one kind.
void Session::choose_by_memory(const Device& device) {
  ParameterOptions& parameters = plan_.parameters;
  const bool weights = plan_.reshard == Reshard::automatic && parameters.parallel.weight_shards() > 1;
  const bool gradients = plan_.grad_sync == GradSync::automatic && plan_.has_grad_sync();
  if (!weights && !gradients) return;
  std::optional<std::int64_t> available;
  if (plan_.on_gpu) {
    available = gpu_memory(share_.first_gpu).total_bytes;
    for (int i = 1; i < share_.local; ++i)
      available = std::min(*available, gpu_memory(share_.first_gpu + i).total_bytes);
  } else if (const auto left = available_memory()) {
    available = *left / share_.local;
  }
  const auto choose = [&](bool& kept) {
    kept = true;
    kept =
        !unsupported_reason(plan_) && (!available || dry_run(plan_, &device).extent <= *available / 10 * 9);
  };
  if (weights) {
    choose(parameters.keep_gathered);
    builder_.warn({fmt::format("--reshard auto: {}", parameters.keep_gathered ? "off" : "on")});
  }
  if (gradients) {
    choose(parameters.sync_last);
    builder_.warn({fmt::format("--grad-sync auto: {}", parameters.sync_last ? "last" : "every")});
  }
}

/// Checks the prediction against the available memory: a host overcommits, then kills a process that uses too
/// much.
void Session::check_host_memory() const {
  if (case_.device != "cpu") return;
  constexpr double kGiB = 1 << 30;
  const std::int64_t wanted = accounts_.most() * share_.local;
  if (const auto left = available_memory(); left && wanted > *left)
    throw OutOfMemory(fmt::format("{:.2f} GiB are predicted for {} on the CPU, {:.2f} GiB are available",
                                  static_cast<double>(wanted) / kGiB,
                                  share_.local == 1 ? "one rank" : fmt::format("{} ranks", share_.local),
                                  static_cast<double>(*left) / kGiB),
                      wanted);
}

void Session::run() {
  check_gpus();
  watch_.emplace(plan_, share_);
  builder_.warn(watch_->warnings());
  data_ = open_training_data(case_, plan_.model);
  builder_.warn(token_warnings(*data_, case_.data));
  if (data_->skipped() > 0)
    builder_.warn({fmt::format("not all of the data was read: {}", data_->describe())});
  if (is_documents(case_.data))
    builder_.warn({fmt::format("tokens/s counts padding: {}{}", data_->describe(),
                               plan_.packs() ? "" : "; --packing on puts several into each sequence")});
  if (!case_.eval_data.empty()) held_out_.emplace(plan_);
  if (!case_.init_from.empty()) initial_ = std::make_unique<InitialWeights>(case_.init_from, plan_.model);
  open_checkpoints();
  builder_.warn(plan_.warnings());
  {
    const std::unique_ptr<Device> device = make_device(share_.first);
    if (const auto why = device->fallback_reason()) builder_.warn({*why});
    choose_by_memory(*device);
    accounts_ = dry_run(plan_, device.get(), bytes_for_arena(plan_, share_));
    builder_.describe(*device, *data_, accounts_);
  }
  check_host_memory();
  begin_ = last_ ? last_->position().step : 0;
  if (last_) builder_.continue_curve(last_->curve(), last_->path());
  if (initial_) builder_.warn(initial_->warnings());
  const std::unique_ptr<CommGroup> group = plan_.on_gpu && plan_.ranks > 1
                                               ? make_gpu_group(share_.world, share_.local)
                                               : make_local_group(plan_.ranks);
  run_rank_threads(
      share_, [&](int rank) { run_rank(rank, *group); }, [&] { group->abort(); }, board_);
  // The record is rank 0's; other processes only report that their part is done.
  if (share_.first != 0) return;
  builder_.warn(data_read_again(*data_, record_.training->loss.size()));
  if (held_out_) builder_.warn(held_out_->overlap(*data_, record_.training->loss.size()));
  builder_.finish(accounts_, probe_gpu(plan_, share_, record_, builder_, board_));
}

/// Returns a warning if the run has read text more than once: its loss is then partly of memorized text.
std::vector<std::string> Session::data_read_again(const DataSource& data, std::size_t steps) const {
  const double read = static_cast<double>(steps) * static_cast<double>(plan_.tokens_per_step() / plan_.T),
               there = static_cast<double>(data.sequences(plan_.T));
  if (read <= there) return {};
  return {fmt::format(
      "--data: {:.0f} sequences of {} tokens were read, and the data has {:.0f}: each was read {:.1f} times",
      read, plan_.T, there, read / there)};
}

/// Opens the trunk that the run forks from and the last checkpoint of an earlier start of this case.
void Session::open_checkpoints() {
  if (!case_.fork_from.empty()) {
    trunk_ = std::make_unique<Checkpoint>(case_.fork_from);
    trunk_->check_forks(plan_);
  }
  // A resumed run does not write the files of the first step, so without them it starts over.
  for (const std::string& path : {case_.save_init, case_.save_grads})
    if (!path.empty() && !std::filesystem::exists(path)) return;
  std::vector<std::string> problems;
  last_ = last_checkpoint(plan_, problems);
  if (last_)
    if (const auto warning = last_->other_build_warning()) problems.push_back(*warning);
  builder_.warn(problems);
}

void Session::run_rank(int index, CommGroup& group) {
  const std::unique_ptr<Device> device = make_device(index);
  const std::unique_ptr<Comm> comm = group.join(index, *device);
  // A little more than predicted, because saving and watching allocate small tensors of their own.
  const std::int64_t capacity = accounts_.extent + watching_bytes(plan_);
  const DeviceBlock block(*device, capacity);
  Rank rank(*device, *comm, plan_, block.data(), capacity);
  train(rank, set_state(rank));
}

/// Sets the weights and the state. Returns the step to begin with.
std::int64_t Session::set_state(Rank& rank) {
  const std::int64_t begin = begin_;
  if (board_) board_->note_work(rank.comm().rank(), "the first weights");
  // Each process has looked for checkpoints itself.
  if (writes_checkpoints(case_) && share_.local < share_.world &&
      rank.sum_over_ranks(static_cast<double>(begin)) != static_cast<double>(begin * share_.world))
    throw InvalidInput("--checkpoint-dir: the processes see different checkpoints there; they must share it");
  // The fidelity probe uses the first weights, and checkpoints lack frozen ones that are in memory as copies alone.
  if (!last_ || case_.fidelity_batches > 0 || rank.parameters().drops_frozen_values()) {
    set_first_weights(rank, plan_, trunk_.get(), initial_.get());
    probe_fidelity(rank, plan_, *data_, accounts_.reference, builder_, board_);
  }
  if (last_) return go_on(rank);
  if (!case_.save_init.empty())
    save_weights(case_.save_init, rank, Parameters::Kind::weights, plan_.model,
                 tokens_of_saved(case_, plan_.data.kind));
  return begin;
}

/// Loads the checkpoint. Each rank finds damage in the parts that it reads, too late for all to start from
/// another one.
std::int64_t Session::go_on(Rank& rank) const {
  try {
    return rank.continue_from(last_->position(), last_->reader());
  } catch (const DamagedCheckpoint& error) {
    throw InvalidInput(fmt::format("{}; move {} away to resume from an older checkpoint or start anew",
                                   error.what(), last_->path()));
  }
}

void Session::train(Rank& rank, std::int64_t begin) {
  const bool first_rank = rank.comm().rank() == 0;
  SamplerOptions options = sampler_options(case_.device);
  options.steps = case_.steps == 0 ? 0 : case_.steps - begin;
  options.time_limit_s = case_.time_limit;
  Sampler sampler(options);
  const bool by_host = plan_.exchange.mode == ExchangeOptions::Mode::sync;  // needs counts on the host
  StepRunner runner(rank, *data_, by_host ? GraphMode::off : plan_.graph, board_);
  const std::vector<std::uint64_t> before = rank.parameters().fingerprints();
  const std::int64_t typical = typical_step(plan_, begin, plan_.accumulation);
  std::vector<CollectiveCount> collectives;  // of one step; saving weights adds others
  double enough = 0;                         // set by rank 0; every rank learns it with the next step's loss
  for (std::int64_t step = begin;; ++step) {
    if (step <= typical) rank.comm().reset_counts();
    const StepRunner::Timed timed = runner.run(step, enough);
    const StepResult& result = timed.result;
    if (first_rank) builder_.add_step(result.loss, result.grad_norm, learning_rate(plan_.optimizer, step));
    if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) throw_diverged(rank, step, result);
    if (step == begin) first_step_done(rank, step, before);
    const bool last = case_.steps > 0 ? step + 1 >= case_.steps : result.signal > 0;
    if (step == typical || (last && step < typical)) {
      collectives = rank.comm().counts();
      if (first_rank && plan_.ranks > 1) builder_.add_communication(rank.comm(), accounts_);
    }
    if (first_rank) {
      if (sampler.add(timed.ms)) enough = 1;
      watch_->after_step(
          {.steps = static_cast<std::size_t>(step) + 1, .next_is_sample = sampler.warmed_up(), .last = last});
    }
    evaluate(rank, step + 1, last);
    if (std::binary_search(checkpoint_steps_.begin(), checkpoint_steps_.end(), step + 1))
      save_checkpoint(rank, step + 1);
    if (!last) continue;
    if (plan_.graph == GraphMode::early && first_rank && runner.early_kernels() == 0)
      builder_.warn(
          {"--graph early: no kernel started early; it takes a captured step, a GPU of compute capability 9.0 and a "
           "driver for CUDA 12.3"});
    finish_training(rank, sampler);
    run_probes(rank, runner, step + 1, plan_, collectives, builder_, board_);
    return;
  }
}

void Session::between_steps(Rank& rank, const char* what, const std::function<void()>& work) {
  if (board_) board_->note_work(rank.comm().rank(), what);
  if (rank.comm().rank() == 0)
    watch_->leave_out(work);
  else
    work();
}

void Session::evaluate(Rank& rank, std::int64_t steps, bool last) {
  if (!held_out_ || !(last || (case_.eval_every > 0 && steps % case_.eval_every == 0))) return;
  between_steps(rank, "the held-out loss", [&] {
    Evaluation evaluation = held_out_->evaluate(rank, steps);
    if (last) evaluation.readings = held_out_->read(rank);
    if (rank.comm().rank() == 0) builder_.add_evaluation(evaluation);
  });
}

void Session::first_step_done(Rank& rank, std::int64_t step, const std::vector<std::uint64_t>& before) {
  builder_.add_parameters(before, rank.parameters().fingerprints());
  if (step == 0 && !case_.save_grads.empty())
    save_weights(case_.save_grads, rank, Parameters::Kind::gradients, plan_.model);
}

/// Writes a checkpoint. On a full disk the run goes on, because its losses are worth a row, but it is not ok: a study
/// forks from the state, and a restart resumes from it.
void Session::save_checkpoint(Rank& rank, std::int64_t steps) {
  between_steps(rank, "a checkpoint", [&] {
    const bool first_rank = rank.comm().rank() == 0;
    TrainingCurve curve;
    if (first_rank) {
      const Training& training = *record_.training;
      curve = {training.loss, training.grad_norm, training.lr, training.evaluations};
    }
    const auto why = write_checkpoint(rank, plan_, steps, curve);
    if (!first_rank || !why || lost_checkpoint_) return;
    lost_checkpoint_ = lost_file_warning(fmt::format("the checkpoint after step {}: {}", steps, *why));
    builder_.warn({*lost_checkpoint_});
  });
}

void Session::finish_training(Rank& rank, const Sampler& sampler) {
  if (rank.comm().rank() == 0) {
    builder_.add_timing(sampler.timing(), watch_->result());
    builder_.add_memory(memory_segments(rank.arena().highest(), rank.arena().peak().total()),
                        rank.device().workspace_bytes(), watch_->used_bytes());
    builder_.add_kernels(rank.device(), verification());
    if (const Routers* routers = rank.parameters().routers())
      builder_.add_routing(*routers, rank.device(), accounts_.experts);
  }
  if (case_.save_final.empty()) return;
  if (board_) board_->note_work(rank.comm().rank(), "saving the last weights");
  try {
    save_weights(case_.save_final, rank, Parameters::Kind::weights, plan_.model,
                 tokens_of_saved(case_, plan_.data.kind));
  } catch (const InvalidInput& error) {  // rank 0's, which writes; the measurements are kept
    builder_.warn({lost_file_warning(fmt::format("--save-final: {}", error.what()))});
  }
}

/// Returns the first parameter with a value that is not finite, in the order of the pass; null if there is
/// none. A collective.
std::optional<std::string> Session::first_not_finite(Rank& rank, Parameters::Kind kind, Order order) {
  std::optional<std::string> found;
  rank.parameters().save(kind, [&](const Parameter& p, const float* values) {
    if (order == Order::forward && found) return;
    if (!std::all_of(values, values + p.size(), [](float v) { return std::isfinite(v); })) found = p.name;
  });
  return found;
}

/// Describes the first token, on the lowest rank that has one, whose router logits are not finite; null if
/// there is none. The text is the same on every rank; a collective.
std::optional<std::string> Session::bad_router(Rank& rank) const {
  const Routers* routers = rank.parameters().routers();
  if (!routers) return std::nullopt;
  const std::optional<BadToken> own = routers->bad_token();
  const auto of_rank = [&](int r, std::int64_t value) {
    return std::llround(rank.sum_over_ranks(rank.comm().rank() == r ? static_cast<double>(value) : 0));
  };
  int r = 0;
  while (r < share_.world && !of_rank(r, own.has_value())) ++r;
  if (r == share_.world) return std::nullopt;
  const BadToken mine = own.value_or(BadToken{});
  const std::int64_t token = of_rank(r, mine.token), micro_step = of_rank(r, mine.micro_step);
  return fmt::format(
      "; first token{} with router logits that are not finite: {} of micro-step {} at layer {} (not always where it began)",
      share_.world > 1 ? fmt::format(" of rank {}", r) : "", token, micro_step, of_rank(r, mine.layer));
}

/// Returns the first of the run's first weights that is not finite, in the model's order; null if all are
/// finite. Loads them again, because an update with bad gradients has changed them all: call it only when the
/// run ends. A collective.
std::optional<std::string> Session::bad_first_weight(Rank& rank) {
  if (last_)
    go_on(rank);
  else
    set_first_weights(rank, plan_, trunk_.get(), initial_.get());
  return first_not_finite(rank, Parameters::Kind::weights, Order::forward);
}

void Session::throw_diverged(Rank& rank, std::int64_t step, const StepResult& result) {
  // Backward runs from the last layer to the first and propagates what is not finite: it began in the last
  // layer that has it. The same on every rank.
  const auto gradient = first_not_finite(rank, Parameters::Kind::gradients, Order::backward);
  const auto router = bad_router(rank);
  const auto weight = step == begin_ ? bad_first_weight(rank) : std::nullopt;
  const std::string origin = weight ? "first weight that is not finite, before any step: " + *weight
                                    : "first bad gradient: " + gradient.value_or("none");
  throw Diverged(fmt::format("{} is not finite at step {}; {}{}",
                             std::isfinite(result.loss) ? "the gradient norm" : "the loss", step + 1, origin,
                             router.value_or("")));
}

}  // namespace

Record run_case(const Plan& plan, const NodeShare& share_given, StepBoard* board) {
  const NodeShare share = share_given.world > 0 ? share_given : all_ranks(plan.ranks);
  Record record = start_record(plan);
  record.env = describe_environment(openmp_threads(), plan.on_gpu ? share.first_gpu : -1, share.local);
  if (const auto why = unsupported_reason(plan)) {
    fail(record, Status::unsupported, *why);
    return record;
  }
  try {
    Session session(plan, share, board, record);
    session.run();
    if (const auto& lost = session.lost_checkpoint()) fail(record, Status::crashed, *lost);
  } catch (const Unsupported& error) {
    fail(record, Status::unsupported, error.what());
  } catch (const OutOfMemory& error) {
    fail(record, Status::oom, error.what());
  } catch (const std::bad_alloc&) {
    fail(record, Status::oom, "the host has no memory left");
  } catch (const Diverged& error) {
    fail(record, Status::diverged, error.what());
  }
  return record;
}

}  // namespace precbench
