// Runs dry steps and reads predictions off their accounts. See predict.h.
#include "bench/predict/predict.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/case/plan.h"
#include "bench/step/held_out.h"
#include "bench/step/measure_sensitivity.h"
#include "bench/step/rank.h"
#include "kernels/base/errors.h"
#include "kernels/device/devices.h"
#include "kernels/numerics/scale_layout.h"
#include "models/config/block.h"
#include "models/transformer/state/shared_layout.h"

namespace precbench {
namespace {

GemmPath path_of(const GemmSupport& support) {
  static constexpr ExecutionPath kPaths[] = {ExecutionPath::native, ExecutionPath::emulated,
                                             ExecutionPath::unsupported};
  GemmPath path{kPaths[static_cast<int>(support.execution)], std::nullopt};
  if (!support.reason.empty()) path.reason = support.reason;
  return path;
}

DryRun dry_run_with(const Plan& plan, const Device* device, ReferencePlace place) {
  const std::unique_ptr<Device> dry = make_dry_device(device);
  const std::unique_ptr<Comm> comm = make_dry_comm(0, plan.ranks);
  constexpr std::int64_t kUnlimited = std::int64_t{1} << 55;
  try {
    Rank rank(*dry, *comm, plan, dry->allocate(kUnlimited), kUnlimited);
    Arena& arena = rank.arena();
    rank.parameters().account_first_weights();
    TraceWriter writer;
    dry->set_observer(&writer);
    comm->set_comm_observer(&writer);
    // Micro-steps between the first and the last are alike: the second stands for them.
    const std::int64_t repeats = plan.accumulation - 2;
    const Routers* routers = rank.parameters().routers();
    ExpertTraffic first, second;
    rank.set_micro_step_filter([&](int micro) {
      if (micro > 1 && micro < plan.accumulation - 1) return false;
      writer.begin_micro_step();
      if (routers && micro > 0) (micro == 1 ? first : second) = routers->traffic();
      return true;
    });
    // Accounts for a typical step of the record, unless the recipe has changed by then.
    std::int64_t step = typical_step(plan, 0, plan.accumulation);
    if (plan.fields.steps > 0) step = std::min(step, plan.fields.steps - 1);
    rank.use_layers_of(&layers_at(plan, step) == &layers_at(plan, 0) ? step : 0);
    rank.enqueue();
    DryRun run;
    run.trace = writer.take(repeats);
    run.trace.attention = attention_setting(plan);
    dry->set_observer(nullptr);
    comm->set_comm_observer(nullptr);
    rank.set_micro_step_filter(nullptr);
    if (routers) run.experts = routers->traffic();
    if (repeats > 1) {
      const auto others = static_cast<double>(repeats - 1);
      run.experts.dispatch += others * (second.dispatch - first.dispatch);
      run.experts.combine += others * (second.combine - first.combine);
    }
    for (const LaterLayers& later : plan.later) {  // memory must suffice for all recipes of the run
      rank.use_layers_of(later.from);
      rank.enqueue();
    }
    rank.use_layers_of(0);
    run.peak = arena.peak();
    run.highest = arena.highest();
    const bool probes = plan.fields.fidelity_batches > 0;
    if (probes || !plan.readings.empty()) arena.restart_accounts();
    if (probes) {
      compare_gradients(rank, plan, place);
      compare_outputs(rank, plan);
      if (!plan.sensitivity.empty()) account_sensitivity(rank, plan, place);
      run.reference = place;
    }
    if (!plan.readings.empty()) HeldOut::account(rank, plan);
    if (probes || !plan.readings.empty()) run.probe = arena.peak().total();
    run.extent = arena.peak_extent();
    // Memory that the device holds outside the arena, it holds all the time.
    const std::int64_t scratch = dry->workspace_bytes();
    for (MemoryUse* use : {&run.peak, &run.highest})
      use->bytes[static_cast<int>(Segment::workspace)] += scratch;
    if (run.probe > 0) run.probe += scratch;
    return run;
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(fmt::format("{} with {} x {} tokens: a rank needs more than {} PiB", plan.model.name,
                                  plan.B, plan.T, kUnlimited >> 50),
                      error.bytes);
  }
}

/// Returns the bytes for the statistics of transposed FP8 data: two columnwise copies and the decoded BF16
/// values; for experts' rows also the BF16 value, which the step itself does not keep.
std::int64_t converting_bytes(const Plan& plan) {
  if (!plan.recipe.flow) return 0;
  const ModelConfig& model = plan.model;
  const QuantFormat& format = plan.recipe.wgrad.b;
  const auto bytes = [&](std::int64_t rows, std::int64_t cols) {
    return 2 * (rows * cols + bytes_of(DType::f32, scale_count(format.granularity, cols, rows))) +
           bytes_of(DType::bf16, rows * cols);
  };
  const std::int64_t own = plan.tokens_per_micro_step();
  std::int64_t widest = model.width;
  for (const LinearSpec& linear : block_of(model, 0).linears)
    if (recipe_role(linear.role) == LinearRole::qkv) widest = std::max(widest, linear.out());
  const std::int64_t most = bytes(own, widest);
  if (!model.moe) return most;
  // Counts all tokens that arrive at this rank's experts.
  const RoutingRule& rule = model.moe.rule;
  const std::int64_t ranks = plan.parameters.expert_ranks, experts = rule.experts / ranks;
  const std::int64_t tokens = ranks * (plan.exchange.slots > 0 ? plan.exchange.slots : own);
  const std::int64_t pad = std::max(plan.transformer(0).group_rows, group_padding(plan.recipe));
  const std::int64_t rows = rows_capacity(tokens * std::min(rule.top_k, experts), experts, pad);
  return std::max(most, bytes(rows, model.width) + bytes_of(DType::bf16, rows * model.width));
}

bool has_gemm(const Recipe& recipe, bool fp4) {
  return std::any_of(std::begin(kGemmRoles), std::end(kGemmRoles), [&](GemmRole role) {
    const GemmRecipe& gemm = recipe.gemm(role);
    const bool quantized = gemm.a.quantized() && gemm.b.quantized();
    return quantized && (gemm.a.dtype == DType::e2m1) == fp4;
  });
}

}  // namespace

double DryRun::model_flops() const {
  double total = 0;
  for (const auto& [op, calls] : trace.counted())  // excludes Muon's GEMMs and routers: not model FLOPs
    if (op.op_class != OpClass::optimizer && op.op_class != OpClass::routing)
      total += op.flops * static_cast<double>(calls);
  return total;
}

DryRun dry_run(const Plan& plan, const Device* device, std::optional<std::int64_t> available) {
  DryRun run = dry_run_with(plan, device, ReferencePlace::device);
  if (run.probe > 0 && available && run.extent > *available)
    run = dry_run_with(plan, device, ReferencePlace::host);
  return run;
}

std::int64_t watching_bytes(const Plan& plan) {
  // Saving gathers one unit at a time; statistics and fingerprints need a few words.
  std::int64_t largest = 0;
  const auto shared = shared_layout(plan.model, plan.parameters.parallel.weight_shards(),
                                    plan.parameters.whole_blocks(), plan.parameters.experts_of(0));
  const Layout& layout = *shared;
  for (int u = 0; u < layout.unit_count(); ++u)
    if (const int parts = layout.is_experts(u) ? layout.expert_share().ranks : layout.shards(); parts > 1)
      largest = std::max(largest, bytes_of(DType::f32, layout.shard_size(u) * parts));
  return largest + converting_bytes(plan) + 64 * Arena::kAlignment;
}

MemorySegments memory_segments(const MemoryUse& highest, std::int64_t peak) {
  const auto of = [&](Segment segment) { return highest.bytes[static_cast<int>(segment)]; };
  MemorySegments m;
  m.weights = of(Segment::weights);
  m.quantized_weights = of(Segment::quantized_weights);
  m.master = of(Segment::master);
  m.gradients = of(Segment::gradients);
  m.moments = of(Segment::moments);
  m.activations = of(Segment::activations);
  m.workspace = of(Segment::workspace);
  m.communication = of(Segment::communication);
  m.other = of(Segment::other);
  m.total = highest.total();
  m.peak = peak;
  return m;
}

double speed_of_light(const std::vector<OpCost>& ops, const OpRates& peaks) {
  double seconds = 0;
  for (const OpCost& op : ops) {
    if (op.op_class == OpClass::communication) continue;
    const double rate = op.math == DType::bf16   ? peaks.bf16_flops
                        : op.math == DType::e2m1 ? peaks.fp4_flops
                                                 : peaks.fp8_flops;
    seconds += std::max(op.flops / rate, op.bytes / peaks.bytes);
  }
  return seconds;
}

bool has_fp4_gemm(const Recipe& recipe) { return has_gemm(recipe, true); }
bool has_fp8_gemm(const Recipe& recipe) { return has_gemm(recipe, false); }

std::optional<OpRates> op_rates(const DatasheetRates& peak, const Recipe& recipe) {
  if (has_fp8_gemm(recipe) && !peak.fp8_tflops) return std::nullopt;
  if (has_fp4_gemm(recipe) && !peak.fp4_tflops) return std::nullopt;
  return OpRates{peak.bf16_tflops * 1e12, peak.fp8_tflops.value_or(0) * 1e12, peak.memory_gb_per_s * 1e9,
                 peak.fp4_tflops.value_or(0) * 1e12};
}

Support support_of(const Plan& plan, const Device& device) {
  const auto path = [&](GemmRole role) {
    GemmPath weakest = path_of(recipe_support(device, plan.recipe, role));
    for (const LaterLayers& later : plan.later)
      if (const GemmPath next = path_of(recipe_support(device, later.recipe, role)); next.path > weakest.path)
        weakest = next;
    return weakest;
  };
  return {path(GemmRole::fprop), path(GemmRole::dgrad), path(GemmRole::wgrad), std::nullopt};
}

Prediction predict(const Plan& plan, const KnownGpu* gpu) {
  Prediction p;
  const double per_token = static_cast<double>(plan.flops_per_token());
  p.flops_per_token = per_token;
  p.flops_per_step = per_token * static_cast<double>(plan.tokens_per_step());
  p.unsupported = unsupported_reason(plan);
  if (p.unsupported) return p;
  const DryRun accounts = dry_run(plan, nullptr);
  p.memory = memory_segments(accounts.highest, accounts.most());
  p.at_peak = accounts.peak;
  p.experts = accounts.experts;
  if (!gpu || support_of(plan, gpu->device).path() != ExecutionPath::native) return p;
  if (const std::optional<DatasheetRates> peak = known_peaks(gpu->name))
    if (const std::optional<OpRates> peaks = op_rates(*peak, plan.recipe))
      p.seconds_per_step = speed_of_light(accounts.ops(), *peaks);
  return p;
}

}  // namespace precbench
