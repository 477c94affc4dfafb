// Turns measurements into the sections of a record. See record_builder.h.
#include "bench/measure/record_builder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "bench/measure/metrics.h"
#include "bench/predict/cost_model.h"
#include "bench/predict/op_record.h"
#include "kernels/base/errors.h"
#include "models/data/token_length.h"
#include "models/transformer/flops.h"

namespace precbench {

void set_model_size(Record& record, const Plan& plan) {
  record.flops = Flops{static_cast<double>(plan.flops_per_token()), name_of(FlopConvention::causal)};
  if (plan.model.moe)
    record.params = ParameterCounts{parameter_count(plan.model), active_parameter_count(plan.model)};
}

void RecordBuilder::describe(const Device& device, const DataSource& data, const DryRun& accounts) {
  record_.support = support_of(plan_, device);
  Training& training = record_.training.emplace();
  training.tokens_per_step = plan_.tokens_per_step();
  training.converted_layers = plan_.converted_layers();
  training.entropy_floor = data.entropy_nats();
  training.uniform_loss = std::log(static_cast<double>(plan_.model.vocab));
  training.bytes_per_token = bytes_per_token(data_options(plan_.fields, plan_.model));
  if (!plan_.fields.eval_data.empty())
    training.held_out_bytes_per_token = bytes_per_token(held_out_options(plan_.fields, plan_.model));
  set_model_size(record_, plan_);
  record_.memory =
      Memory{memory_segments(accounts.highest, accounts.peak.total()), std::nullopt, std::nullopt};
  // The rates of attention are those of whole sequences.
  if (record_.env.gpu && record_.support->path() == ExecutionPath::native && !plan_.packs()) {
    Trace trace = accounts.trace;
    trace.attention = attention_setting(plan_, record_.env.cudnn.has_value());
    record_.predicted = predicted_step(record_.env.gpu->name, trace, plan_.ranks, share_.nodes);
  }
  if (record_.support->path() == ExecutionPath::unsupported)
    for (const GemmPath* path : {&record_.support->fprop, &record_.support->dgrad, &record_.support->wgrad})
      if (path->path == ExecutionPath::unsupported)
        throw Unsupported(path->reason.value_or("not on this device"));
}

void RecordBuilder::warn(const std::vector<std::string>& lines) {
  const std::lock_guard lock(mutex_);
  record_.warnings.insert(record_.warnings.end(), lines.begin(), lines.end());
}

void RecordBuilder::add_step(double loss, double grad_norm, double learning_rate) {
  const std::lock_guard lock(mutex_);
  record_.training->loss.push_back(loss);
  record_.training->grad_norm.push_back(grad_norm);
  record_.training->lr.push_back(learning_rate);
}

void RecordBuilder::continue_curve(const TrainingCurve& curve, const std::string& path) {
  record_.training->loss = curve.loss;
  record_.training->grad_norm = curve.grad_norm;
  record_.training->lr = curve.lr;
  record_.training->evaluations = curve.evaluations;
  continued_ = true;
  warn({fmt::format("resumed from the checkpoint {}: times are of the steps after step {}", path,
                    curve.loss.size())});
}

void RecordBuilder::add_evaluation(const Evaluation& evaluation) {
  const std::lock_guard lock(mutex_);
  record_.training->evaluations.push_back(evaluation);
}

void RecordBuilder::add_fidelity(std::vector<Fidelity> fidelity) {
  const std::lock_guard lock(mutex_);
  record_.fidelity = std::move(fidelity);
}

void RecordBuilder::add_sensitivity(SensitivityRecord sensitivity) {
  const std::lock_guard lock(mutex_);
  record_.sensitivity = std::move(sensitivity);
}

void RecordBuilder::add_communication(const Comm& comm, const DryRun& accounts) {
  const std::lock_guard lock(mutex_);
  Communication& record = record_.communication.emplace();
  record.backend = comm.name();
  for (const CollectiveCount& c : comm.counts()) {
    record.collectives.push_back({c.name, c.calls, c.buffer_bytes, c.wire_bytes, std::nullopt});
    record.wire_bytes += c.wire_bytes;
  }
  for (const OpCost& op : accounts.ops())
    if (op.op_class == OpClass::communication) record.predicted_wire_bytes += op.bytes;
  for (char** variable = environ; *variable; ++variable)
    if (std::string_view(*variable).starts_with("NCCL_")) record.environment.emplace_back(*variable);
  std::sort(record.environment.begin(), record.environment.end());
}

void RecordBuilder::add_parameters(const std::vector<std::uint64_t>& before,
                                   const std::vector<std::uint64_t>& after) {
  const std::lock_guard lock(mutex_);
  changed_.resize(before.size());
  for (std::size_t i = 0; i < before.size(); ++i) changed_[i] = changed_[i] || before[i] != after[i];
}

void RecordBuilder::add_timing(Timing timing, const SamplingMeasurement& sampling) {
  const std::lock_guard lock(mutex_);
  timing.wall_ms = sampling.wall_ms;
  timing.cpu_ms = sampling.cpu_ms;
  timing.cpu_wait_ms = sampling.cpu_wait_ms;
  record_.timing = std::move(timing);
  record_.telemetry = sampling.telemetry;
  energy_j_per_token_ = sampling.energy_j_per_token;
}

void RecordBuilder::add_memory(const MemorySegments& arena, std::int64_t workspace,
                               std::optional<std::int64_t> driver) {
  const std::lock_guard lock(mutex_);
  MemorySegments measured = arena;
  measured.workspace += workspace;
  measured.total += workspace;
  measured.peak += workspace;
  record_.memory->measured = measured;
  record_.memory->driver = driver;
}

std::vector<NativeGemm> RecordBuilder::native_gemms(const Device& device) const {
  std::vector<NativeGemm> gemms;
  std::vector<const Recipe*> recipes = {&plan_.recipe};
  for (const LaterLayers& later : plan_.later) recipes.push_back(&later.recipe);
  for (const Recipe* recipe : recipes)
    for (const GemmRole role : kGemmRoles)
      if (const GemmRecipe& gemm = recipe->gemm(role);
          device.support(gemm, role).execution == Execution::native)
        gemms.push_back({gemm, role});
  return gemms;
}

void RecordBuilder::add_kernels(const Device& device, const Verification* verification) {
  const std::lock_guard lock(mutex_);
  Support& support = *record_.support;
  support.attention = device.attention_name();
  const auto add = [&](GemmPath& path, GemmRole role) {
    if (const std::string names = device.gemm_names(role); !names.empty()) path.kernels = names;
    const std::string shapes = device.emulated_shapes(role);
    if (shapes.empty()) return;
    // Step times with emulated GEMMs among native ones say nothing about the recipe's speed.
    path.path = std::max(path.path, ExecutionPath::emulated);
    path.reason = fmt::format("cuBLASLt has no kernel for the shapes (M x N x K) {}", shapes);
    path.emulated_shapes = shapes;
  };
  add(support.fprop, GemmRole::fprop);
  add(support.dgrad, GemmRole::dgrad);
  add(support.wgrad, GemmRole::wgrad);
  if (!is_gpu(device.name()) || support.path() != ExecutionPath::native) return;
  const std::vector<std::string> missing =
      unverified_paths(native_gemms(device), device.attention_name(), verification);
  support.verified = missing.empty();
  if (!verification) return;
  // A path that disagrees runs natively only because the user trusts it.
  for (const std::string& path : missing)
    if (const auto found = verification->paths.find(path); found != verification->paths.end())
      record_.warnings.push_back(
          fmt::format("trusted: {} disagrees with the CPU: {}", path, found->second.detail));
}

void RecordBuilder::add_breakdown(const StepProfiler::Result& profile) {
  const std::lock_guard lock(mutex_);
  const auto of = [&](OpClass op_class) { return profile.class_ms[static_cast<int>(op_class)]; };
  record_.breakdown = Breakdown{of(OpClass::gemm),
                                of(OpClass::quantize),
                                of(OpClass::attention),
                                of(OpClass::norm_elementwise) + of(OpClass::other),
                                of(OpClass::head_loss),
                                of(OpClass::optimizer),
                                of(OpClass::communication),
                                profile.idle_ms,
                                std::nullopt,
                                {}};
  if (plan_.model.moe) record_.breakdown->routing_ms = of(OpClass::routing);
  for (const StepProfiler::OpTime& op : profile.ops)
    record_.breakdown->ops.push_back(op_record(op.cost, op.calls, op.ms));
}

void RecordBuilder::add_bus_rates(const std::vector<std::optional<double>>& rates) {
  std::vector<std::string> without;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < rates.size(); ++i) {
      CollectiveRecord& collective = record_.communication->collectives[i];
      if (rates[i])
        collective.bus_gb_per_s = *rates[i] / 1e9;
      else
        without.push_back(
            fmt::format("the bandwidth of {} was not measured: no memory for its buffers", collective.name));
    }
  }
  warn(without);
}

void RecordBuilder::add_quantization(std::vector<QuantizationStats> statistics) {
  const std::lock_guard lock(mutex_);
  record_.quantization = std::move(statistics);
}

void RecordBuilder::add_flow(const StepProfiler::Result& profile, std::vector<Conversion> conversion) {
  if (flow_unsupported_reason(plan_.recipe)) return;
  FlowRecord flow;
  flow.on = plan_.recipe.flow;
  flow.conversion = std::move(conversion);
  for (const StepProfiler::OpTime& op : profile.ops) {
    std::int64_t& casts = op.cost.op_class == OpClass::quantize ? flow.casts.standalone : flow.casts.fused;
    casts += std::int64_t{op.calls} * op.cost.casts;
    if (op.cost.name == std::string_view(name_of(OpKind::transpose_codes))) flow.transposes += op.calls;
  }
  const std::lock_guard lock(mutex_);
  record_.flow = std::move(flow);
}

void RecordBuilder::finish(const DryRun& accounts, const std::optional<OpRates>& rates) {
  Training& training = *record_.training;
  training.params_total = static_cast<std::int64_t>(changed_.size());
  // Unknown if some shards are in other processes only, or if an earlier start ran the first step.
  const int parts = std::max(plan_.parameters.parallel.weight_shards(), plan_.parameters.expert_ranks);
  if (!continued_ && parts <= share_.local)
    training.params_changed = std::count(changed_.begin(), changed_.end(), true);
  if (training.params_changed && training.params_changed != training.params_total)
    warn({fmt::format("{} of {} parameter tensors did not change in the first step",
                      *training.params_total - *training.params_changed, *training.params_total)});
  fill_metrics(record_, plan_, accounts.ops(), rates, energy_j_per_token_);
}

}  // namespace precbench
