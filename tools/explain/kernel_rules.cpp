// Rules about kernels that are no GEMMs: fusion, optimizer, attention, collectives. See rules.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/explain/rules.h"

namespace precbench {
namespace {

/// Bytes per element of a fused chain that is no cast: two operands of 16 bits read, one written.
constexpr double kFusedBytes = 6;
/// Parameters that one launch of a fused optimizer updates.
constexpr double kTensorsOfLaunch = 20e6;
/// Time of the GPU that fusing must save, as a share of the step.
constexpr double kLeastUnfused = 0.01;

/// Returns true for a kernel of which a compiler could make one with its neighbours.
bool fusible(const Work& work) {
  switch (work.work_class) {
    case WorkClass::elementwise:
    case WorkClass::cast:
    case WorkClass::norm:
    case WorkClass::loss:
      return !work.generated && !work.fill && !work.math_attention;
    default:
      return false;
  }
}

bool is_multi_tensor(const StepRepairs& step, const Work& work) {
  return step.trace.name(work.name).find("multi_tensor") != std::string::npos;
}

/// Returns the number of parameters that the optimizer updates, and the bytes of one.
std::pair<double, double> updated_parameters(const StepRepairs& step) {
  std::map<std::string, double> by_op, width;  // elements of the first inputs
  std::set<std::uint32_t> seen;
  for (const Work& work : step.work.work) {
    if (work.work_class != WorkClass::optimizer) continue;
    for (std::uint32_t op = work.op; op != kNoIndex; op = step.trace.ops[op].parent) {
      const HostEvent& event = step.trace.ops[op];
      if (event.inputs == kNoIndex || !seen.insert(op).second) continue;
      const OpInputs& inputs = step.trace.inputs[event.inputs];
      double elements = static_cast<double>(inputs.elements.front());
      if (!inputs.dims.front().empty()) {
        elements = 1;
        for (const std::int64_t size : inputs.dims.front()) elements *= static_cast<double>(size);
      }
      by_op[step.trace.name(event.name)] += elements;
      // Lists of tensors have no type, but their kernels are named after it.
      const auto narrow = [](const std::string& text) {
        return text.find("BFloat16") != std::string::npos || text.find("Half") != std::string::npos;
      };
      width[step.trace.name(event.name)] =
          narrow(step.trace.name(work.name)) || (!inputs.types.empty() && narrow(inputs.types.front())) ? 2
                                                                                                        : 4;
    }
  }
  // Adam divides once per parameter.
  for (const char* once :
       {"aten::addcdiv_", "aten::_foreach_addcdiv_", "aten::_fused_adamw_", "aten::_fused_adam_"})
    if (const auto found = by_op.find(once); found != by_op.end() && found->second > 0)
      return {found->second, width.contains(once) ? width[once] : 4};
  return {0, 0};
}

}  // namespace

/// Eager kernels that a compiler would fuse. A chain ends at other work and at a reduction of a whole tensor.
void find_not_fused(StepRepairs& step) {
  struct Part {
    double time = 0, fused = 0;
    int kernels = 0;
    double lost() const { return time - fused; }
  };
  Part casts, others;
  ReplayItems repaired = step.items;
  std::vector<std::size_t> item_of(step.work.work.size());
  for (std::size_t i = 0; i < step.items.size(); ++i)
    if (!step.items[i].waits) item_of[step.items[i].work] = i;
  std::vector<std::size_t> chain;  // indices of step.work.work
  bool casting = false;
  const auto finish = [&] {
    if (chain.empty()) return;
    Part& part = casting ? casts : others;
    double slowest = 0, elements = 0, bytes = 0;
    std::size_t kept = chain.front();
    for (const std::size_t i : chain) {
      const Work& work = step.work.work[i];
      part.time += static_cast<double>(work.duration);
      elements = std::max(elements, work.elements);
      if (static_cast<double>(work.duration) > slowest) kept = i;
      slowest = std::max(slowest, static_cast<double>(work.duration));
    }
    part.kernels += static_cast<int>(chain.size());
    if (step.expected && elements > 0 && chain.size() > 1) {
      // A fused cast reads 16 bits, and writes 8 unless it only finds the maximum. Other chains read and write 16
      // bits.
      bytes = (casting ? (step.work.work[chain.back()].to_scalar ? 2 : 3) : kFusedBytes) * elements;
      slowest = std::min(slowest, step.expected->stream(bytes));
    }
    part.fused += slowest;
    for (const std::size_t i : chain) {
      ReplayItem& item = repaired[item_of[i]];
      if (i == kept)
        item.duration = slowest;
      else
        remove_launch(item);
    }
    chain.clear();
  };
  double generated = 0;
  for (std::size_t i = 0; i < step.work.work.size(); ++i) {
    const Work& work = step.work.work[i];
    if (work.generated) generated += static_cast<double>(work.duration);
    if (!fusible(work)) {
      finish();
      continue;
    }
    const bool cast = work.float8 || work.work_class == WorkClass::cast;
    if (cast != casting) finish();
    casting = cast;
    chain.push_back(i);
    if (work.to_scalar) finish();
  }
  finish();
  if (casts.lost() + others.lost() < kLeastUnfused * step.now) return;
  // Compiled code spends no more of the host's time on a launch than eager code does on average.
  double host = 0;
  for (const ReplayItem& item : step.items) host += item.host;
  for (ReplayItem& item : repaired)
    if (!item.waits) item.host = std::min(item.host, host / static_cast<double>(step.items.size()));
  const bool nothing_compiled = generated < 0.05 * (casts.time + others.time);
  if (casts.lost() > others.lost() && !nothing_compiled) {
    step.add(
        {.id = "casts",
         .title = "Casts are not fused",
         .evidence =
             fmt::format("{} kernels of quantization take {:.2f} ms; fused they would take about {:.2f} ms.",
                         casts.kernels, ms_of(casts.time), ms_of(casts.fused)),
         .repair =
             "compile the quantized linears with the rest of the block, or use fused quantization kernels"},
        repaired, true);
    return;
  }
  step.add({.id = "not_compiled",
            .title = nothing_compiled ? "The model is not compiled" : "Part of the step is not compiled",
            .evidence =
                fmt::format("{} elementwise kernels{} take {:.2f} ms; fused they would take about {:.2f} ms.",
                            casts.kernels + others.kernels,
                            casts.kernels > 0 ? fmt::format(" ({} of quantization)", casts.kernels) : "",
                            ms_of(casts.time + others.time), ms_of(casts.fused + others.fused)),
            .repair = nothing_compiled ? "torch.compile the blocks and the loss"
                                       : "torch.compile what is left out, often the loss"},
           repaired, true);
}

void find_optimizer(StepRepairs& step) {
  // Clipping of gradients has kernels of the same kind; where the optimizer is marked, they are outside.
  const auto inside = [&](const Work& work) {
    return work.work_class == WorkClass::optimizer &&
           step.trace.any_around(work.op,
                                 [](const std::string& name) { return name.starts_with("Optimizer.step"); });
  };
  const bool marked = std::any_of(step.work.work.begin(), step.work.work.end(), inside);
  const auto updates = [&](const Work& work) {
    return marked ? inside(work) : work.work_class == WorkClass::optimizer;
  };
  double time = 0;
  int kernels = 0;
  for (const Work& work : step.work.work) {
    if (!updates(work)) continue;
    time += static_cast<double>(work.duration);
    ++kernels;
  }
  const auto [parameters, element] = updated_parameters(step);
  if (!step.expected || kernels < 20 || parameters == 0) return;
  const double bytes = 7 * parameters * element;  // reads p, g, m, v; writes p, m, v
  const double fused = std::min(step.expected->update(bytes), time);
  int launches = 0;
  for (const Work& work : step.work.work) launches += updates(work) && !is_multi_tensor(step, work);
  if (launches < kernels / 2 && time < 1.5 * fused) return;  // a few launches for all tensors
  ReplayItems repaired = step.items;
  const auto kept = static_cast<int>(
      std::clamp(std::ceil(parameters / kTensorsOfLaunch), 1.0, static_cast<double>(kernels)));
  int count = 0;
  for (ReplayItem& item : repaired) {
    if (item.waits || !updates(step.work_of(item))) continue;
    if (count++ < kept)
      item.duration = fused / kept;
    else
      remove_launch(item);
  }
  step.add({.id = "optimizer",
            .title = "The optimizer is not fused",
            .evidence =
                fmt::format("{} kernels update {:.0f} M parameters in {:.2f} ms; one pass takes {:.2f} ms.",
                            kernels, parameters / 1e6, ms_of(time), ms_of(fused)),
            .repair = "fused=True (torch.optim.AdamW), or another fused optimizer"},
           repaired, true);
}

void find_attention(StepRepairs& step) {
  double time = 0;
  std::map<std::array<std::int64_t, 3>, int> shapes;  // heads, T, head_dim of score GEMMs
  for (const Work& work : step.work.work) {
    if (!work.math_attention) continue;
    time += static_cast<double>(work.duration);
    if (work.gemm && work.gemm->batch > 1) {
      std::array<std::int64_t, 3> sizes = {work.gemm->m, work.gemm->n, work.gemm->k};
      std::sort(sizes.begin(), sizes.end());
      ++shapes[{work.gemm->batch, sizes[2], sizes[0]}];
    }
  }
  if (time == 0 || !step.expected) return;
  double fused = 0;
  for (const auto& [shape, gemms] : shapes)  // two GEMMs forward, four backward
    fused += step.expected->attention(shape[0], shape[1], shape[2]) * gemms / 6;
  if (fused >= time) return;
  step.add(
      {.id = "attention",
       .title = "Attention is written out instead of fused",
       .evidence = fmt::format(
           "GEMMs and softmax over whole score matrices take {:.2f} ms; flash attention takes about {:.2f} ms.",
           ms_of(time), ms_of(fused)),
       .repair =
           "let scaled_dot_product_attention choose flash or cuDNN attention: BF16, a head size that it knows, "
           "no explicit mask"},
      step.scaled([&](const Work& work) { return work.math_attention ? fused / time : 1; }));
}

void find_collectives(StepRepairs& step) {
  const auto exposed = static_cast<double>(step.work.time(WorkClass::collective));
  double longest = 0;
  for (const Work& work : step.work.work)
    if (work.work_class == WorkClass::collective)
      longest = std::max(longest, static_cast<double>(work.duration));
  // The first gather and the last reduction have nothing to hide behind.
  if (exposed < 0.05 * step.now || exposed <= longest) return;
  ReplayItems repaired = step.items;
  for (ReplayItem& item : repaired)
    if (item.after != ReplayItem::kNone &&
        step.work_of(step.items[item.after]).work_class == WorkClass::collective)
      item.after = ReplayItem::kNone;
  step.add(
      {.id = "collectives",
       .title = "Collectives are exposed",
       .evidence = fmt::format("For {:.2f} ms only collectives ran, the longest {:.2f} ms.", ms_of(exposed),
                               ms_of(longest)),
       .repair = "prefetch the next block's gather, and reduce gradients while the backward pass goes on"},
      repaired);
}

}  // namespace precbench
