// Rules that name lost time. See findings.h.
#include "tools/explain/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace precbench {
namespace {

constexpr double kMs = 1e6;  // ns

bool aligned(const GemmShape& shape) {
  const std::int64_t unit = shape.format == GemmFormat::fp8 ? 16 : 8;
  return shape.m % unit == 0 && shape.n % unit == 0 && shape.k % unit == 0;
}

/// Returns the shape with its sizes rounded up to a multiple of 64.
GemmShape padded(GemmShape shape) {
  for (std::int64_t* size : {&shape.m, &shape.n, &shape.k}) *size = (*size + 63) / 64 * 64;
  return shape;
}

bool is_16_bit(GemmFormat format) { return format == GemmFormat::bf16 || format == GemmFormat::fp16; }

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

/// Rules of one step. Each changes the step's items, and replays them.
class Rules {
 public:
  Rules(const TrainingTrace& trace, Explanation& all, const Expectation* expectation)
      : trace_(trace), all_(all), step_(all.steps.step), gaps_(all.gaps), expected_(expectation) {
    items_ = replay_items(trace, step_, all.steps.waits_at_end);
    now_ = replay(items_, kHostShare);
    all.unprofiled = now_;
    remaining_ = items_;
  }

  void apply() {
    recompilation();
    waiting();
    copies();
    not_fused();
    optimizer();
    attention();
    wide_gemms();
    alignment();
    unconverted();
    small_gemms();
    collectives();
    small_batch();
    graph_breaks();
    launch_bound();
    std::erase_if(all_.findings, [&](const Finding& one) { return one.lost < kLeastLoss * now_; });
    std::stable_sort(all_.findings.begin(), all_.findings.end(),
                     [](const Finding& a, const Finding& b) { return a.lost > b.lost; });
  }

 private:
  using Items = std::vector<ReplayItem>;

  static double ms(double ns) { return ns / kMs; }
  static double ms(std::int64_t ns) { return static_cast<double>(ns) / kMs; }

  const Work& work_of(const ReplayItem& item) const { return step_.work[item.work]; }

  /// Adds a finding whose repair turns the step into `repaired`. `host`: the repair makes fewer launches or waits, so
  /// that what launch_bound() finds is what remains after it.
  void add(Finding finding, const Items& repaired, bool host = false) {
    finding.predicted = replay(repaired, kHostShare);
    finding.lost = now_ - finding.predicted;
    if (finding.lost < kLeastLoss * now_) return;
    all_.findings.push_back(std::move(finding));
    if (!host) return;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      ReplayItem& left = remaining_[i];
      left.host = std::min(left.host, repaired[i].host);
      left.hole = std::min(left.hole, repaired[i].hole);
      left.compile = std::min(left.compile, repaired[i].compile);
      left.duration = std::min(left.duration, repaired[i].duration);
      left.gap = std::min(left.gap, repaired[i].gap);
      left.waits = left.waits && repaired[i].waits;
      left.removed = left.removed || repaired[i].removed;
    }
  }

  /// Removes a launch with its kernel.
  static void remove(ReplayItem& item) {
    item.host = item.duration = item.gap = 0;
    item.removed = true;
  }

  void recompilation() {
    if (gaps_.compile_time == 0) return;
    Items repaired = items_;
    for (ReplayItem& item : repaired) {
      item.compile = 0;
      // Stretches this long between launches load code or plan kernels; benchmarks of kernels end with the
      // compilation, too.
      item.host = std::min(item.host, kLongestHostNs);
      if (!item.waits && is_benchmark(work_of(item))) remove(item);
    }
    add({.id = "recompilation",
         .title = "torch.compile compiles inside the step",
         .evidence = fmt::format("The host compiled for {:.1f} ms, in which the GPU waited {:.1f} ms.",
                                 ms(gaps_.compile_time), ms(gaps_[GapCause::compile])),
         .repair =
             "keep shapes equal in all steps, or mark the changing size as dynamic (torch._dynamo.mark_dynamic)"},
        repaired, true);
  }

  bool is_benchmark(const Work& work) const {
    for (std::uint32_t op = work.op; op != kNoIndex; op = trace_.ops[op].parent)
      if (trace_.name(trace_.ops[op].name).find("benchmark") != std::string::npos) return true;
    return false;
  }

  void waiting() {
    const std::int64_t sync = gaps_[GapCause::synchronize], host = gaps_[GapCause::host];
    Items repaired = items_;
    double holes = 0, compile = 0;
    int waits = 0;
    for (std::size_t i = 0; i < repaired.size(); ++i) {
      ReplayItem& item = repaired[i];
      // A wait for a copy goes with the copy.
      std::size_t launch = i;
      while (launch > 0 && items_[launch].waits) --launch;
      const bool copy = !items_[launch].waits && work_of(items_[launch]).work_class == WorkClass::copy &&
                        items_[launch].duration > kLongCopyNs;
      if (item.waits && !copy) {
        ++waits;
        item.waits = false;
        item.removed = true;
      }
      holes += item.hole;
      compile += item.compile;
      item.hole = 0;
    }
    if (waits == 0 && holes == 0) return;
    const bool idle = static_cast<double>(host) > static_cast<double>(sync) || waits == 0;
    add({.id = "launch_gaps",
         .title = idle ? "The GPU waits while the host does something else"
                       : "The host waits for the GPU and falls behind",
         .evidence =
             idle
                 ? fmt::format(
                       "In {:.2f} ms of the step the host launched nothing; the GPU was idle for {:.2f} ms after it.",
                       ms(holes), ms(host + sync))
                 : fmt::format(
                       "The host waited {} times, the longest in {}; the GPU was idle for {:.2f} ms after it.",
                       waits, gaps_.waited_in, ms(host + sync)),
         .repair =
             idle
                 ? "prepare batches ahead in other processes, and do nothing else between launches"
                 : "remove synchronization from the step: .item(), print, torch.cuda.synchronize, copies to the host"},
        repaired, true);
  }

  void copies() {
    Items repaired = items_;
    for (std::size_t i = 0; i < repaired.size(); ++i) {
      if (items_[i].waits || work_of(items_[i]).work_class != WorkClass::copy ||
          items_[i].duration < kLongCopyNs)
        continue;
      remove(repaired[i]);
      for (std::size_t j = i + 1; j < repaired.size() && items_[j].waits; ++j)
        repaired[j].waits = false, repaired[j].removed = true;
    }
    add({.id = "memcpy",
         .title = "Copies between host and GPU are exposed",
         .evidence = fmt::format("For {:.2f} ms the GPU only copied.", ms(step_.time(WorkClass::copy))),
         .repair =
             "keep the data on the GPU, or copy from pinned memory on another stream (non_blocking=True)"},
        repaired, true);
  }

  /// Eager kernels that a compiler would fuse. A chain ends at other work and at a reduction of a whole tensor.
  void not_fused() {
    struct Part {
      double time = 0, fused = 0;
      int kernels = 0;
      double lost() const { return time - fused; }
    };
    Part casts, others;
    Items repaired = items_;
    std::vector<std::size_t> item_of(step_.work.size());
    for (std::size_t i = 0; i < items_.size(); ++i)
      if (!items_[i].waits) item_of[items_[i].work] = i;
    std::vector<std::size_t> chain;  // indices of step_.work
    bool casting = false;
    const auto finish = [&] {
      if (chain.empty()) return;
      Part& part = casting ? casts : others;
      double slowest = 0, elements = 0, bytes = 0;
      std::size_t kept = chain.front();
      for (const std::size_t i : chain) {
        const Work& work = step_.work[i];
        part.time += static_cast<double>(work.duration);
        elements = std::max(elements, work.elements);
        if (static_cast<double>(work.duration) > slowest) kept = i;
        slowest = std::max(slowest, static_cast<double>(work.duration));
      }
      part.kernels += static_cast<int>(chain.size());
      if (expected_ && elements > 0 && chain.size() > 1) {
        // A fused cast reads 16 bits, and writes 8 unless it only finds the maximum. Other chains read and write 16
        // bits.
        bytes = (casting ? (step_.work[chain.back()].to_scalar ? 2 : 3) : kFusedBytes) * elements;
        slowest = std::min(slowest, expected_->stream(bytes));
      }
      part.fused += slowest;
      for (const std::size_t i : chain) {
        ReplayItem& item = repaired[item_of[i]];
        if (i == kept)
          item.duration = slowest;
        else
          remove(item);
      }
      chain.clear();
    };
    double generated = 0;
    for (std::size_t i = 0; i < step_.work.size(); ++i) {
      const Work& work = step_.work[i];
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
    if (casts.lost() + others.lost() < kLeastUnfused * now_) return;
    // Compiled code spends no more of the host's time on a launch than eager code does on average.
    double host = 0;
    for (const ReplayItem& item : items_) host += item.host;
    for (ReplayItem& item : repaired)
      if (!item.waits) item.host = std::min(item.host, host / static_cast<double>(items_.size()));
    const bool nothing_compiled = generated < 0.05 * (casts.time + others.time);
    if (casts.lost() > others.lost() && !nothing_compiled) {
      add({.id = "casts",
           .title = "Casts are not fused",
           .evidence = fmt::format(
               "{} kernels of quantization take {:.2f} ms; fused they would take about {:.2f} ms.",
               casts.kernels, ms(casts.time), ms(casts.fused)),
           .repair =
               "compile the quantized linears with the rest of the block, or use fused quantization kernels"},
          repaired, true);
      return;
    }
    add({.id = "not_compiled",
         .title = nothing_compiled ? "The model is not compiled" : "Part of the step is not compiled",
         .evidence =
             fmt::format("{} elementwise kernels{} take {:.2f} ms; fused they would take about {:.2f} ms.",
                         casts.kernels + others.kernels,
                         casts.kernels > 0 ? fmt::format(" ({} of quantization)", casts.kernels) : "",
                         ms(casts.time + others.time), ms(casts.fused + others.fused)),
         .repair = nothing_compiled ? "torch.compile the blocks and the loss"
                                    : "torch.compile what is left out, often the loss"},
        repaired, true);
  }

  /// Finds the waiting for launches that remains after the other repairs: with one launch for all kernels it is gone.
  void launch_bound() {
    Items repaired = remaining_;
    std::size_t kernels = 0;
    for (ReplayItem& item : repaired) {
      kernels += !item.waits && !item.removed;
      item.host = 0;
    }
    const double before = replay(remaining_, kHostShare), after = replay(repaired, kHostShare),
                 lost = before - after;
    if (lost < kLeastLaunchBound * now_) return;
    all_.findings.push_back(
        {.id = "launch_bound",
         .title = "The host launches kernels more slowly than the GPU runs them",
         .evidence =
             fmt::format("{} kernels wait {:.2f} ms for the host, by its time as traced less {:.0f}% for the "
                         "profiler.",
                         kernels, ms(lost), 100 * (1 - kHostShare)),
         .repair = "CUDA graphs (torch.compile(mode=\"reduce-overhead\")), or a larger batch",
         .lost = lost,
         .predicted = now_ - lost});
  }

  void optimizer() {
    double time = 0;
    int kernels = 0;
    for (const Work& work : step_.work) {
      if (work.work_class != WorkClass::optimizer) continue;
      time += static_cast<double>(work.duration);
      ++kernels;
    }
    const auto [parameters, element] = updated_parameters();
    if (!expected_ || kernels < 20 || parameters == 0) return;
    const double bytes = 7 * parameters * element;  // reads p, g, m, v; writes p, m, v
    const double fused = std::min(expected_->update(bytes), time);
    int launches = 0;
    for (const Work& work : step_.work)
      launches += work.work_class == WorkClass::optimizer && !is_multi_tensor(work);
    if (launches < kernels / 2 && time < 1.5 * fused) return;  // a few launches for all tensors
    Items repaired = items_;
    const auto kept = static_cast<int>(
        std::clamp(std::ceil(parameters / kTensorsOfLaunch), 1.0, static_cast<double>(kernels)));
    int count = 0;
    for (ReplayItem& item : repaired) {
      if (item.waits || work_of(item).work_class != WorkClass::optimizer) continue;
      if (count++ < kept)
        item.duration = fused / kept;
      else
        remove(item);
    }
    add({.id = "optimizer",
         .title = "The optimizer is not fused",
         .evidence =
             fmt::format("{} kernels update {:.0f} M parameters in {:.2f} ms; one pass takes {:.2f} ms.",
                         kernels, parameters / 1e6, ms(time), ms(fused)),
         .repair = "fused=True (torch.optim.AdamW), or another fused optimizer"},
        repaired, true);
  }

  bool is_multi_tensor(const Work& work) const {
    return trace_.name(work.name).find("multi_tensor") != std::string::npos;
  }

  /// Returns the number of parameters that the optimizer updates, and the bytes of one.
  std::pair<double, double> updated_parameters() const {
    std::map<std::string, double> by_op, width;  // elements of the first inputs
    std::set<std::uint32_t> seen;
    for (const Work& work : step_.work) {
      if (work.work_class != WorkClass::optimizer) continue;
      for (std::uint32_t op = work.op; op != kNoIndex; op = trace_.ops[op].parent) {
        const HostEvent& event = trace_.ops[op];
        if (event.inputs == kNoIndex || !seen.insert(op).second) continue;
        const OpInputs& inputs = trace_.inputs[event.inputs];
        double elements = static_cast<double>(inputs.elements.front());
        if (!inputs.dims.front().empty()) {
          elements = 1;
          for (const std::int64_t size : inputs.dims.front()) elements *= static_cast<double>(size);
        }
        by_op[trace_.name(event.name)] += elements;
        if (!inputs.types.empty())
          width[trace_.name(event.name)] = inputs.types.front().find("BFloat16") != std::string::npos ? 2 : 4;
      }
    }
    // Adam divides once per parameter.
    for (const char* once :
         {"aten::addcdiv_", "aten::_foreach_addcdiv_", "aten::_fused_adamw_", "aten::_fused_adam_"})
      if (const auto found = by_op.find(once); found != by_op.end() && found->second > 0)
        return {found->second, width.contains(once) ? width[once] : 4};
    return {0, 0};
  }

  void attention() {
    double time = 0;
    std::map<std::array<std::int64_t, 3>, int> shapes;  // heads, T, head_dim of score GEMMs
    for (const Work& work : step_.work) {
      if (!work.math_attention) continue;
      time += static_cast<double>(work.duration);
      if (work.gemm && work.gemm->batch > 1) {
        std::array<std::int64_t, 3> sizes = {work.gemm->m, work.gemm->n, work.gemm->k};
        std::sort(sizes.begin(), sizes.end());
        ++shapes[{work.gemm->batch, sizes[2], sizes[0]}];
      }
    }
    if (time == 0 || !expected_) return;
    double fused = 0;
    for (const auto& [shape, gemms] : shapes)  // two GEMMs forward, four backward
      fused += expected_->attention(shape[0], shape[1], shape[2]) * gemms / 6;
    if (fused >= time) return;
    add({.id = "attention",
         .title = "Attention is written out instead of fused",
         .evidence = fmt::format(
             "GEMMs and softmax over whole score matrices take {:.2f} ms; flash attention takes about {:.2f} ms.",
             ms(time), ms(fused)),
         .repair =
             "let scaled_dot_product_attention choose flash or cuDNN attention: BF16, a head size that it knows, "
             "no explicit mask"},
        scaled([&](const Work& work) { return work.math_attention ? fused / time : 1; }));
  }

  /// Returns the items with the kernels' durations times a factor.
  template <class Factor>
  Items scaled(const Factor& factor) const {
    Items repaired = items_;
    for (ReplayItem& item : repaired)
      if (!item.waits) item.duration *= factor(work_of(item));
    return repaired;
  }

  /// Returns the items with the durations of GEMMs times the factor of their shape.
  Items with_gemms(const std::map<GemmShape, double>& factors) const {
    return scaled([&](const Work& work) {
      const auto found = work.gemm ? factors.find(*work.gemm) : factors.end();
      return found == factors.end() ? 1.0 : found->second;
    });
  }

  void wide_gemms() {
    double time = 0, narrow = 0;
    std::map<GemmShape, double> factors;
    for (const GemmRow& row : all_.gemms) {
      if (row.shape.format != GemmFormat::fp32 || row.shape.m == 0 || !expected_) continue;
      const double after =
          expected_->gemm(row.shape, GemmFormat::bf16, row.wgrad) * row.calls * all_.calibration;
      if (after <= 0 || row.time <= 0) continue;
      time += static_cast<double>(row.time);
      narrow += after;
      factors[row.shape] = after / static_cast<double>(row.time);
    }
    if (time == 0) return;
    add({.id = "fp32",
         .title = "GEMMs run in FP32",
         .evidence = fmt::format("They take {:.2f} ms; in BF16 they would take about {:.2f} ms.", ms(time),
                                 ms(narrow)),
         .repair = "run them in BF16 with FP32 accumulation (autocast, or no .float() before the linear)"},
        with_gemms(factors));
  }

  void alignment() {
    double lost = 0, time = 0, pads = 0;
    int kernels = 0;
    std::string example;
    std::map<GemmShape, double> factors;
    for (const GemmRow& row : all_.gemms) {
      if (row.shape.m == 0 || row.shape.batch > 1 || aligned(row.shape) || !expected_) continue;
      const double after =
          expected_->gemm(padded(row.shape), row.shape.format, row.wgrad) * row.calls * all_.calibration;
      if (after <= 0 || static_cast<double>(row.time) < 1.15 * after) continue;
      lost += static_cast<double>(row.time) - after;
      time += static_cast<double>(row.time);
      factors[row.shape] = after / static_cast<double>(row.time);
      if (example.empty()) example = fmt::format("{} x {} x {}", row.shape.m, row.shape.n, row.shape.k);
    }
    Items repaired = with_gemms(factors);
    for (ReplayItem& item : repaired) {
      if (item.waits || !pads_operand(work_of(item))) continue;
      pads += item.duration;
      ++kernels;
      remove(item);
    }
    if (lost + pads == 0) return;
    const std::string padding = fmt::format("{} kernels only pad operands, in {:.2f} ms", kernels, ms(pads));
    add({.id = "alignment",
         .title = "Sizes of GEMMs are not aligned",
         .evidence = example.empty()
                         ? padding + "."
                         : fmt::format("GEMMs such as {} take {:.2f} ms, with aligned sizes {:.2f} ms{}.",
                                       example, ms(time), ms(time - lost), kernels ? "; " + padding : ""),
         .repair =
             "make every size a multiple of 64: pad the vocabulary, choose sequences of whole multiples"},
        repaired);
  }

  /// Returns true for a kernel that copies an operand of a GEMM into a larger one: an eager pad, or what torch.compile
  /// puts before GEMMs with a vocabulary that is no multiple of 8.
  bool pads_operand(const Work& work) const {
    for (std::uint32_t op = work.op; op != kNoIndex; op = trace_.ops[op].parent)
      if (trace_.name(trace_.ops[op].name) == "aten::constant_pad_nd") return true;
    const std::string& name = trace_.name(work.name);
    if (!work.generated || all_.vocabulary % 8 == 0) return false;
    return name.starts_with("triton_poi_fused_") && name.find("mm_") != std::string::npos &&
           work.elements >= static_cast<double>(all_.vocabulary);
  }

  bool is_head(const GemmShape& shape) const {
    return all_.vocabulary > 0 &&
           (shape.m == all_.vocabulary || shape.n == all_.vocabulary || shape.k == all_.vocabulary);
  }

  /// Returns the elements of both operands of a GEMM.
  static double operands(const GemmShape& shape) {
    const auto m = static_cast<double>(shape.m), n = static_cast<double>(shape.n),
               k = static_cast<double>(shape.k);
    return m * k + n * k;
  }

  /// Returns the time that quantizing takes in this step, for each element of an FP8 GEMM's operands. Kernels that also
  /// do other work count whole, since that work would be fused into a kernel that exists anyway.
  double cast_time_per_element() const {
    double time = 0, elements = 0;
    for (const Work& work : step_.work) {
      const std::string& name = trace_.name(work.name);
      if (work.generated &&
          (name.find("clamp") != std::string::npos || name.find("abs_") != std::string::npos))
        time += static_cast<double>(work.duration);
    }
    for (const GemmRow& row : all_.gemms)
      if (row.shape.format == GemmFormat::fp8) elements += operands(row.shape) * row.calls;
    return elements > 0 ? std::max(time / elements, expected_->stream(3)) : 0;
  }

  void unconverted() {
    double lost = 0, time = 0, fp8_time = 0, fp8_expected = 0;
    bool rowwise = false;
    for (const GemmRow& row : all_.gemms)
      if (row.shape.format == GemmFormat::fp8) {
        fp8_time += static_cast<double>(row.time);
        fp8_expected += row.expected;
        rowwise |= row.shape.rowwise;
      }
    if (fp8_time == 0 || !expected_) return;
    const double calibration = fp8_expected > 0 ? fp8_time / fp8_expected : 1;
    const double cast = cast_time_per_element();
    std::set<std::string> shapes;
    std::map<GemmShape, double> factors;
    for (const GemmRow& row : all_.gemms) {
      GemmShape shape = row.shape;
      if (!is_16_bit(shape.format) || shape.m == 0 || shape.batch > 1 || is_head(shape) || row.time <= 0 ||
          shape.m % 16 != 0 || shape.n % 16 != 0 || shape.k % 16 != 0)
        continue;
      shape.rowwise = rowwise;
      const double gemm = expected_->gemm(shape, GemmFormat::fp8, row.wgrad);
      const double after = (gemm * calibration + cast * operands(shape)) * row.calls;
      if (gemm <= 0) continue;
      lost += static_cast<double>(row.time) - after;
      time += static_cast<double>(row.time);
      factors[row.shape] = after / static_cast<double>(row.time);
      if (!row.wgrad && shapes.size() < 2) shapes.insert(fmt::format("{} x {}", shape.n, shape.k));
    }
    if (lost <= 0) return;
    std::string names;
    for (const std::string& one : shapes) names += (names.empty() ? "" : ", ") + one;
    add({.id = "unconverted",
         .title = "Linears are left in BF16",
         .evidence =
             fmt::format("GEMMs in BF16 beside FP8 ones ({}) take {:.2f} ms, in FP8 with casts {:.2f} ms.",
                         names, ms(time), ms(time - lost)),
         .repair = "convert them too, unless they are kept for convergence"},
        with_gemms(factors));
  }

  void small_gemms() {
    double fp8 = 0, wide = 0, casts = 0;
    std::map<GemmShape, double> factors;
    for (const GemmRow& row : all_.gemms) {
      if (row.shape.format != GemmFormat::fp8 || row.shape.m == 0 || !expected_ || row.time <= 0) continue;
      const double after =
          expected_->gemm(row.shape, GemmFormat::bf16, row.wgrad) * row.calls * all_.calibration;
      fp8 += static_cast<double>(row.time);
      wide += after;
      factors[row.shape] = after / static_cast<double>(row.time);
    }
    if (fp8 == 0) return;
    Items repaired = with_gemms(factors);
    int launches = 0;
    for (ReplayItem& item : repaired) {
      if (item.waits || work_of(item).work_class != WorkClass::cast || !work_of(item).generated) continue;
      casts += item.duration;
      ++launches;
      remove(item);
    }
    add({.id = "small_gemms",
         .title = "GEMMs are too small for FP8",
         .evidence = fmt::format(
             "FP8 GEMMs and {} casts take {:.2f} ms and their launches; BF16 GEMMs would take about {:.2f} ms.",
             launches, ms(fp8 + casts), ms(wide)),
         .repair = "leave these linears in BF16, or raise the tokens of a batch"},
        repaired, true);
  }

  void collectives() {
    const auto exposed = static_cast<double>(step_.time(WorkClass::collective));
    double longest = 0;
    for (const Work& work : step_.work)
      if (work.work_class == WorkClass::collective)
        longest = std::max(longest, static_cast<double>(work.duration));
    // The first gather and the last reduction have nothing to hide behind.
    if (exposed < 0.05 * now_ || exposed <= longest) return;
    Items repaired = items_;
    for (ReplayItem& item : repaired)
      if (item.after != ReplayItem::kNone && work_of(items_[item.after]).work_class == WorkClass::collective)
        item.after = ReplayItem::kNone;
    add({.id = "collectives",
         .title = "Collectives are exposed",
         .evidence = fmt::format("For {:.2f} ms only collectives ran, the longest {:.2f} ms.", ms(exposed),
                                 ms(longest)),
         .repair = "prefetch the next block's gather, and reduce gradients while the backward pass goes on"},
        repaired);
  }

  void graph_breaks() {
    // A compiled region inside another one is what follows a break.
    int breaks = 0;
    for (const HostEvent& op : trace_.ops) {
      if (op.start >= step_.host_end) break;
      if (op.start < step_.host_begin || !trace_.name(op.name).starts_with("Torch-Compiled Region")) continue;
      for (std::uint32_t outer = op.parent; outer != kNoIndex; outer = trace_.ops[outer].parent)
        if (trace_.name(trace_.ops[outer].name).starts_with("Torch-Compiled Region")) {
          ++breaks;
          break;
        }
    }
    if (breaks == 0) return;
    Items repaired = remaining_;
    for (ReplayItem& item : repaired) item.host = 0;
    const double before = replay(remaining_, kHostShare), lost = before - replay(repaired, kHostShare);
    if (lost < kLeastLoss * now_) return;
    all_.findings.push_back(
        {.id = "graph_breaks",
         .title = "Graph breaks divide the compiled model",
         .evidence = fmt::format(
             "{} times a compiled graph ended early; kernels wait {:.2f} ms for the host.", breaks, ms(lost)),
         .repair = "find them with torch.compile(fullgraph=True) or TORCH_LOGS=graph_breaks",
         .lost = lost,
         .predicted = now_ - lost});
    for (ReplayItem& item : remaining_) item.host = 0;
  }

  void small_batch() {
    if (!expected_ || all_.tokens == 0 || all_.tokens >= 2048) return;
    const double factor = std::ceil(4096.0 / static_cast<double>(all_.tokens));
    const auto times = [&](std::int64_t size) {
      return static_cast<std::int64_t>(static_cast<double>(size) * factor);
    };
    std::map<GemmShape, double> factors;
    for (const GemmRow& row : all_.gemms) {
      GemmShape shape = row.shape;
      (row.wgrad ? shape.k : shape.m) = times(row.wgrad ? shape.k : shape.m);
      const double after =
          shape.m ? expected_->gemm(shape, shape.format, row.wgrad) * row.calls * all_.calibration : 0;
      factors[row.shape] = after > 0 && row.time > 0 ? after / static_cast<double>(row.time) : factor;
    }
    const Items larger = scaled([&](const Work& work) {
      if (work.gemm) return factors.contains(*work.gemm) ? factors[*work.gemm] : factor;
      if (work.work_class == WorkClass::optimizer || work.duration <= 0) return 1.0;
      const double time = static_cast<double>(work.duration);
      return work.bytes > 0 ? (time + (factor - 1) * std::min(time, expected_->stream(work.bytes))) / time
                            : factor;
    });
    const double after = replay(larger, kHostShare), share = after / factor;
    if (share > 0.9 * now_) return;
    all_.findings.push_back(
        {.id = "small_batch",
         .title = "The batch is too small",
         .evidence = fmt::format(
             "{} tokens per step; with {:.0f} times as many a step takes {:.2f} ms, {:.2f} ms per "
             "{} tokens.",
             all_.tokens, factor, ms(after), ms(share), all_.tokens),
         .repair = "more sequences per GPU and step, as memory allows",
         .lost = now_ - share,
         .predicted = share,
         .more_tokens = factor});
  }

  static constexpr double kLongestHostNs = 1e6;
  /// Shorter copies are parts of other operations.
  static constexpr double kLongCopyNs = 100'000;
  /// Bytes per element of a fused chain that is no cast: two operands of 16 bits read, one written.
  static constexpr double kFusedBytes = 6;
  /// Parameters that one launch of a fused optimizer updates.
  static constexpr double kTensorsOfLaunch = 20e6;
  /// Time of the GPU that fusing must save, as a share of the step.
  static constexpr double kLeastUnfused = 0.01;
  /// Waiting for launches below this share of the step may come from the profiler.
  static constexpr double kLeastLaunchBound = 0.15;

  const TrainingTrace& trace_;
  Explanation& all_;
  const StepWork& step_;
  const Gaps& gaps_;
  const Expectation* expected_;
  Items items_, remaining_;  ///< as traced; after the repairs of other findings that concern the host
  double now_ = 0;           ///< ns of the step without the profiler
};

/// Finds the number of tokens: most GEMMs have it as m, or as k if they compute a weight's gradient.
std::int64_t tokens_of(const std::vector<Work>& work) {
  std::map<std::int64_t, int> counts;
  for (const Work& one : work)
    if (one.gemm && one.gemm->m > 0 && one.gemm->batch == 1) ++counts[one.gemm->m];
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](auto& a, auto& b) { return a.second < b.second; });
  return most == counts.end() ? 0 : most->first;
}

/// Finds the size of the vocabulary: of an embedding's table, or a large size that few GEMMs have.
std::int64_t vocabulary_of(const TrainingTrace& trace, const StepWork& step) {
  for (const Work& work : step.work)
    for (std::uint32_t op = work.op; op != kNoIndex; op = trace.ops[op].parent) {
      const HostEvent& event = trace.ops[op];
      if (trace.name(event.name) == "aten::embedding" && event.inputs != kNoIndex) {
        const auto& dims = trace.inputs[event.inputs].dims;
        if (!dims.empty() && dims[0].size() == 2) return dims[0][0];
      }
    }
  std::map<std::int64_t, int> counts;
  for (const Work& work : step.work)
    if (work.gemm && work.gemm->batch == 1)
      for (const std::int64_t size : {work.gemm->m, work.gemm->n, work.gemm->k})
        if (size >= 16384) ++counts[size];
  for (const auto& [size, count] : counts)
    if (count <= 3) return size;
  return 0;
}

}  // namespace

Explanation explain_trace(const TrainingTrace& trace, const Expectation* expectation) {
  Explanation all;
  all.steps = find_steps(trace);
  const StepWork& step = all.steps.step;
  all.gaps = find_gaps(trace, step);
  all.tokens = tokens_of(step.work);
  all.vocabulary = vocabulary_of(trace, step);
  std::map<std::pair<GemmShape, bool>, GemmRow> rows;
  std::set<std::uint32_t> counted;
  for (const Work& work : step.work) {
    if (work.work_class != WorkClass::gemm) continue;
    const bool wgrad = work.gemm->k == all.tokens && work.gemm->m != all.tokens;
    GemmRow& row = rows[{*work.gemm, wgrad}];
    row.shape = *work.gemm;
    row.wgrad = wgrad;
    row.time += work.duration;
    // Kernels of one call, such as the sum after split-k, share the operation.
    if (work.op == kNoIndex || counted.insert(work.op).second) ++row.calls;
  }
  double measured = 0, expected = 0;
  for (auto& [key, row] : rows) {
    if (expectation) row.expected = expectation->gemm(row.shape, row.shape.format, row.wgrad) * row.calls;
    if (row.expected > 0 && is_16_bit(row.shape.format) && aligned(row.shape) && row.shape.batch == 1) {
      measured += static_cast<double>(row.time);
      expected += row.expected;
    }
    all.gemms.push_back(row);
  }
  if (expected > 0) all.calibration = std::clamp(measured / expected, 0.7, 1.5);
  std::stable_sort(all.gemms.begin(), all.gemms.end(), [](const GemmRow& a, const GemmRow& b) {
    return (a.shape.m > 0) != (b.shape.m > 0) ? a.shape.m > 0 : a.time > b.time;
  });
  Rules(trace, all, expectation).apply();
  return all;
}

}  // namespace precbench
