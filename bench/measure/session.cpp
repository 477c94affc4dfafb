// One case inside its process: builds the ranks, trains, measures, and fills the record. In order:
//   describe     plan, prediction, support, environment: known before anything runs
//   train        every rank in its thread: steps until the sampler has enough, loss and gradient norm of each
//   afterwards   weights out; then, outside the timed samples, one profiled step, the bandwidth of the
//                collectives and the quantization statistics
#include "bench/measure/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "bench/case/plan.h"
#include "bench/machine/environment.h"
#include "bench/machine/gpu_watch.h"
#include "bench/machine/host_memory.h"
#include "bench/measure/bus_bandwidth.h"
#include "bench/measure/measured_rates.h"
#include "bench/measure/metrics.h"
#include "bench/measure/predict.h"
#include "bench/measure/quantization.h"
#include "bench/measure/sampler.h"
#include "bench/step/rank.h"
#include "bench/step/rank_threads.h"
#include "bench/step/step_runner.h"
#include "bench/step/weights.h"
#include "kernels/base/errors.h"
#include "kernels/device/devices.h"
#include "kernels/gpu/device_info.h"
#include "models/transformer/flops.h"

namespace precbench {
namespace {

class Session {
 public:
  Session(const Case& c, const NodeShare& share, StepBoard* board, Record& record)
      : case_(c),
        record_(record),
        plan_(make_plan(c)),
        share_(share.world > 0 ? share : all_ranks(plan_.ranks)),
        board_(board) {}

  void run();

 private:
  bool on_gpu() const { return is_gpu(case_.device); }
  std::unique_ptr<Device> make_device(int rank) const {
    return on_gpu() ? make_gpu_device(share_.first_gpu + rank - share_.first, gpu_options())
                    : make_cpu_device(std::max(1, threads_ / share_.local));
  }
  /// Equal bits need equal algorithms, which timing them does not promise.
  GpuOptions gpu_options() const {
    const bool deterministic = case_.deterministic == "on";
    return {.autotune = !deterministic, .deterministic = deterministic, .attention = case_.attention};
  }
  void warn(const std::vector<std::string>& lines) {
    record_.warnings.insert(record_.warnings.end(), lines.begin(), lines.end());
  }
  void describe(const Device& device);
  void check_host_memory() const;
  void run_rank(int rank, CommGroup& group);
  void train(Rank& rank);
  void finish_training(Rank& rank, const Sampler& sampler);
  void note_communication(const Comm& comm);
  void note_changed_parameters(const std::vector<std::uint64_t>& before,
                               const std::vector<std::uint64_t>& after);
  void watch_sampling(const Sampler& sampler, bool last);
  void afterwards(Rank& rank, StepRunner& runner, std::int64_t step,
                  const std::vector<CollectiveCount>& collectives);
  void probe_collectives(Rank& rank, const std::vector<CollectiveCount>& collectives);
  void measure();
  void note_work(int rank, const char* what) {
    if (board_) board_->note_work(rank, what);
  }
  [[noreturn]] void throw_diverged(Rank& rank, std::int64_t step, const StepResult& result);

  const Case& case_;
  Record& record_;
  Plan plan_;
  NodeShare share_;
  StepBoard* board_;
  int threads_ = openmp_threads();
  std::unique_ptr<DataSource> data_;
  std::unique_ptr<InitialWeights> initial_;
  DryRun books_;
  std::mutex mutex_;              // of what ranks write to the record
  std::vector<bool> changed_;     // per parameter: on any rank of this process
  std::optional<GpuWatch> gpus_;  // this process's; null on the CPU
  bool watching_ = false;
  std::size_t watched_from_ = 0;
  std::chrono::steady_clock::time_point watched_since_;
  std::optional<double> wall_ms_, energy_j_per_token_;
};

void Session::describe(const Device& device) {
  record_.support = support_of(plan_.recipe, device);
  Training& training = record_.training.emplace();
  training.tokens_per_step = plan_.tokens_per_step();
  training.converted_layers = plan_.converted_layers();
  training.entropy_floor = data_->entropy_nats();
  training.uniform_loss = std::log(static_cast<double>(plan_.model.vocab));
  record_.flops = Flops{static_cast<double>(flops_per_token(plan_.model, plan_.T).total()),
                        name_of(FlopConvention::causal)};
  books_ = dry_run(plan_, &device);
  record_.memory = Memory{memory_segments(books_.highest, books_.peak.total()), std::nullopt, std::nullopt};
  if (record_.support->path() == ExecutionPath::unsupported)
    for (const GemmPath* path : {&record_.support->fprop, &record_.support->dgrad, &record_.support->wgrad})
      if (path->path == ExecutionPath::unsupported)
        throw Unsupported(path->reason.value_or("not on this device"));
}

/// A host promises more memory than it has, and then kills who takes it.
void Session::check_host_memory() const {
  if (case_.device != "cpu") return;
  constexpr double kGiB = 1 << 30;
  const std::int64_t wanted = books_.peak.total() * share_.local;
  if (const auto left = available_memory(); left && wanted > *left)
    throw OutOfMemory(fmt::format("{:.2f} GiB are predicted for {} on the CPU, {:.2f} GiB are available",
                                  static_cast<double>(wanted) / kGiB,
                                  share_.local == 1 ? "one rank" : fmt::format("{} ranks", share_.local),
                                  static_cast<double>(*left) / kGiB),
                      wanted);
}

void Session::run() {
  if (on_gpu() && find_gpus().count < share_.first_gpu + share_.local)
    throw Unsupported(
        fmt::format("{} GPUs wanted, {}", share_.local,
                    find_gpus().count ? fmt::format("{} visible", find_gpus().count) : find_gpus().reason));
  if (on_gpu()) {
    gpus_.emplace(share_.first_gpu, share_.local);  // before any device is opened
    warn(gpus_->warnings());
  }
  data_ = open_data(data_options(case_, plan_.model));
  if (data_->skipped() > 0) warn({fmt::format("not all of the data was read: {}", data_->describe())});
  if (!case_.init_from.empty()) initial_ = std::make_unique<InitialWeights>(case_.init_from, plan_.model);
  warn(plan_.warnings());
  describe(*make_device(share_.first));
  check_host_memory();
  if (initial_) warn(initial_->warnings());
  const std::unique_ptr<CommGroup> group = on_gpu() && plan_.ranks > 1
                                               ? make_gpu_group(share_.world, share_.local)
                                               : make_local_group(plan_.ranks);
  run_rank_threads(
      share_, [&](int rank) { run_rank(rank, *group); }, [&] { group->abort(); }, board_);
  // What rank 0 has measured is the case's; other processes only say that their part is done.
  if (share_.first == 0) measure();
}

void Session::run_rank(int index, CommGroup& group) {
  const std::unique_ptr<Device> device = make_device(index);
  const std::unique_ptr<Comm> comm = group.join(index, *device);
  // A little more than predicted: saving and watching push small tensors of their own.
  const std::int64_t capacity = books_.extent + watching_bytes(plan_);
  const DeviceBlock block(*device, capacity);
  Rank rank(*device, *comm, plan_, block.data(), capacity);
  if (initial_)
    initial_->load_into(rank.parameters());
  else
    rank.parameters().initialize(plan_.seed, kInitialDeviation);
  if (!case_.save_init.empty()) save_weights(case_.save_init, rank, Parameters::Kind::weights, plan_.model);
  train(rank);
}

void Session::train(Rank& rank) {
  const bool first_rank = rank.comm().rank() == 0;
  SamplerOptions options = sampler_options(case_.device);
  options.steps = case_.steps;
  options.time_limit_s = case_.time_limit;
  Sampler sampler(options);
  StepRunner runner(rank, *data_, case_.graph == "on", board_);
  const std::vector<std::uint64_t> before = rank.parameters().fingerprints();
  rank.comm().reset_counts();
  std::vector<CollectiveCount> collectives;  // of a step; saving weights makes others
  double enough = 0;                         // rank 0 sets it, every rank learns it with the next step's loss
  for (std::int64_t step = 0;; ++step) {
    const StepRunner::Timed timed = runner.run(step, enough);
    const StepResult& result = timed.result;
    if (first_rank) {
      const std::lock_guard lock(mutex_);
      record_.training->loss.push_back(result.loss);
      record_.training->grad_norm.push_back(result.grad_norm);
      record_.training->lr.push_back(learning_rate(plan_.optimizer, step));
    }
    if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) throw_diverged(rank, step, result);
    if (step == 0) {
      collectives = rank.comm().counts();
      if (first_rank && plan_.ranks > 1) note_communication(rank.comm());
      note_changed_parameters(before, rank.parameters().fingerprints());
      if (!case_.save_grads.empty())
        save_weights(case_.save_grads, rank, Parameters::Kind::gradients, plan_.model);
    }
    const bool last = case_.steps > 0 ? step + 1 >= case_.steps : result.signal > 0;
    if (first_rank) {
      if (sampler.add(timed.ms)) enough = 1;
      watch_sampling(sampler, last);
    }
    if (!last) continue;
    finish_training(rank, sampler);
    afterwards(rank, runner, step + 1, collectives);
    return;
  }
}

/// What the host's clock and the GPUs say of the steps that are samples.
void Session::watch_sampling(const Sampler& sampler, bool last) {
  using Clock = std::chrono::steady_clock;
  if (!watching_ && sampler.warmed_up()) {
    if (gpus_) gpus_->start();
    watching_ = true;
    watched_from_ = record_.training->loss.size();
    watched_since_ = Clock::now();
  } else if (watching_ && last) {
    const std::chrono::duration<double> watched_s = Clock::now() - watched_since_;
    const double steps = static_cast<double>(record_.training->loss.size() - watched_from_);
    wall_ms_ = watched_s.count() * 1e3 / steps;
    if (!gpus_) return;
    const GpuWatch::Result watched = gpus_->stop();
    record_.telemetry = watched.telemetry;
    // The energy counter moves in steps too coarse for less. Of GPUs of other processes nothing is known.
    constexpr double kShortestForEnergy_s = 2;
    if (watched.energy_j && watched_s.count() >= kShortestForEnergy_s && share_.local == share_.world)
      energy_j_per_token_ = *watched.energy_j / (steps * static_cast<double>(plan_.tokens_per_step()));
  }
}

void Session::finish_training(Rank& rank, const Sampler& sampler) {
  if (rank.comm().rank() == 0) {
    const std::lock_guard lock(mutex_);
    record_.timing = sampler.timing();
    record_.timing->wall_ms = wall_ms_;
    MemorySegments measured = memory_segments(rank.arena().highest(), rank.arena().peak().total());
    const std::int64_t workspace = rank.device().workspace_bytes();
    measured.workspace += workspace;
    measured.total += workspace;
    measured.peak += workspace;
    record_.memory->measured = measured;
    record_.memory->driver = gpus_ ? gpus_->used_bytes() : peak_resident_bytes();
    record_.support->attention = rank.device().attention_name();
  }
  if (case_.save_final.empty()) return;
  note_work(rank.comm().rank(), "saving the last weights");
  try {
    save_weights(case_.save_final, rank, Parameters::Kind::weights, plan_.model);
  } catch (const InvalidInput& error) {  // rank 0's, which writes; what was measured is not lost with a file
    const std::lock_guard lock(mutex_);
    warn({fmt::format("--save-final: {}", error.what())});
  }
}

/// After the first step, which every collective has run in once, whether later steps are replayed or not.
void Session::note_communication(const Comm& comm) {
  const std::lock_guard lock(mutex_);
  Communication& record = record_.communication.emplace();
  record.backend = comm.name();
  for (const CollectiveCount& c : comm.counts()) {
    record.collectives.push_back({c.name, c.calls, c.buffer_bytes, c.wire_bytes, std::nullopt});
    record.wire_bytes += c.wire_bytes;
  }
  for (const OpCost& op : books_.ops)
    if (op.op_class == OpClass::communication) record.predicted_wire_bytes += op.bytes;
  for (char** variable = environ; *variable; ++variable)
    if (std::string_view(*variable).starts_with("NCCL_")) record.environment.emplace_back(*variable);
  std::sort(record.environment.begin(), record.environment.end());
}

void Session::note_changed_parameters(const std::vector<std::uint64_t>& before,
                                      const std::vector<std::uint64_t>& after) {
  const std::lock_guard lock(mutex_);
  changed_.resize(before.size());
  for (std::size_t i = 0; i < before.size(); ++i) changed_[i] = changed_[i] || before[i] != after[i];
}

/// A kind of collective whose buffers do not fit stays without a rate: what was measured before is worth more.
void Session::probe_collectives(Rank& rank, const std::vector<CollectiveCount>& collectives) {
  note_work(rank.comm().rank(), "the collectives alone");
  rank.parameters().release_gradients();
  const auto rates = bus_bandwidths(rank.device(), rank.arena(), rank.parameters().comms(), collectives);
  if (rank.comm().rank() != 0) return;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    CollectiveRecord& collective = record_.communication->collectives[i];
    if (rates[i])
      collective.bus_gb_per_s = *rates[i] / 1e9;
    else
      warn({fmt::format("the bandwidth of {} was not measured: no memory for its buffers", collective.name)});
  }
}

/// Outside every measurement: from here on the model is trained further, unseen.
void Session::afterwards(Rank& rank, StepRunner& runner, std::int64_t step,
                         const std::vector<CollectiveCount>& collectives) {
  note_work(rank.comm().rank(), "the profiled step");
  const StepProfiler::Result result = runner.profile(step);
  if (plan_.ranks > 1 && on_gpu()) probe_collectives(rank, collectives);
  QuantizationStatistics statistics(rank.device(), rank.arena(), plan_);
  rank.transformer().set_quantization_observer(&statistics);
  if (plan_.recipe.quantized()) {
    note_work(rank.comm().rank(), "the quantization statistics");
    rank.forward_backward();
    rank.parameters().complete_all();
  }
  if (rank.comm().rank() != 0) return;
  const auto of = [&](OpClass op_class) { return result.class_ms[static_cast<int>(op_class)]; };
  record_.breakdown = Breakdown{of(OpClass::gemm),
                                of(OpClass::quantize),
                                of(OpClass::attention),
                                of(OpClass::norm_elementwise) + of(OpClass::other),
                                of(OpClass::head_loss),
                                of(OpClass::optimizer),
                                of(OpClass::communication),
                                result.idle_ms,
                                {}};
  for (const StepProfiler::OpTime& op : result.ops)
    record_.breakdown->ops.push_back({op.name, name_of(op.op_class), op.calls, op.ms, op.flops, op.bytes});
  record_.quantization = statistics.result();
}

void Session::throw_diverged(Rank& rank, std::int64_t step, const StepResult& result) {
  // The first tensor, in the model's order, with a gradient that is not finite; the same on every rank.
  std::string bad;
  rank.parameters().save(Parameters::Kind::gradients, [&](const Parameter& p, const float* values) {
    if (bad.empty() && !std::all_of(values, values + p.size(), [](float v) { return std::isfinite(v); }))
      bad = p.name;
  });
  throw Diverged(fmt::format("{} is not finite at step {}; first bad gradient: {}",
                             std::isfinite(result.loss) ? "the gradient norm" : "the loss", step + 1,
                             bad.empty() ? "none" : bad));
}

void Session::measure() {
  Training& training = *record_.training;
  training.params_total = static_cast<std::int64_t>(changed_.size());
  // Unknown where some shards are in other processes only.
  if (plan_.parameters.parallel.shard <= share_.local)
    training.params_changed = std::count(changed_.begin(), changed_.end(), true);
  if (training.params_changed && training.params_changed != training.params_total)
    record_.warnings.push_back(fmt::format("{} of {} parameter tensors did not change in the first step",
                                           *training.params_total - *training.params_changed,
                                           *training.params_total));
  std::optional<OpRates> ceilings;
  if (record_.env.gpu && record_.support->path() == ExecutionPath::native) {
    for (int rank = share_.first; rank < share_.first + share_.local; ++rank)
      note_work(rank, "the GPU's rates");
    try {
      ceilings = measure_rates(*make_gpu_device(share_.first_gpu), plan_.recipe);
    } catch (const OutOfMemory& error) {
      record_.warnings.push_back(fmt::format("the GPU's own rates were not measured: {}", error.what()));
    }
  }
  fill_metrics(record_, plan_, books_.ops, ceilings, energy_j_per_token_);
}

}  // namespace

Record run_case(const Case& c, const NodeShare& share, StepBoard* board) {
  Record record = start_record(c);
  const int local = share.world > 0 ? share.local : static_cast<int>(c.gpus);
  record.env = describe_environment(openmp_threads(), is_gpu(c.device) ? share.first_gpu : -1, local);
  const Plan plan = make_plan(c);
  if (const std::string why = plan.why_unsupported(); !why.empty()) {
    fail(record, Status::unsupported, why);
    return record;
  }
  try {
    Session(c, share, board, record).run();
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
