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
      return !work.generated && !work.math_attention;
    default:
      return false;
  }
}

/// Rules of one step.
class Rules {
 public:
  Rules(const TrainingTrace& trace, Explanation& all, const Expectation* expectation)
      : trace_(trace), all_(all), step_(all.steps.step), gaps_(all.gaps), expected_(expectation) {
    step_time_ = static_cast<double>(step_.duration());
    busy_ = step_time_ - static_cast<double>(step_.time(WorkClass::idle));
  }

  void apply() {
    recompilation();
    waiting();
    copies();
    not_fused();
    launch_bound();
    optimizer();
    attention();
    wide_gemms();
    alignment();
    unconverted();
    small_gemms();
    collectives();
    graph_breaks();
    small_batch();
    std::erase_if(all_.findings, [&](const Finding& one) { return one.lost < kLeastLoss * step_time_; });
    std::stable_sort(all_.findings.begin(), all_.findings.end(),
                     [](const Finding& a, const Finding& b) { return a.lost > b.lost; });
  }

 private:
  double ms(double ns) const { return ns / kMs; }
  /// Time of the step without waiting for the host, if the host keeps up with it.
  double without_waiting() const {
    const double gpu = busy_ + static_cast<double>(gaps_[GapCause::device]);
    return std::max(gpu, static_cast<double>(gaps_.host_time));
  }
  void add(Finding finding) {
    finding.lost = std::min(finding.lost, step_time_);
    if (finding.predicted == 0) finding.predicted = step_time_ - finding.lost;
    if (finding.lost > 0) all_.findings.push_back(std::move(finding));
  }

  void recompilation() {
    const auto idle = static_cast<double>(gaps_[GapCause::compile]);
    if (gaps_.compile_time == 0 || idle <= 0) return;
    add({.id = "recompilation",
         .title = "torch.compile compiles inside the step",
         .evidence = fmt::format("The host compiled for {:.1f} ms, in which the GPU waited {:.1f} ms.",
                                 ms(static_cast<double>(gaps_.compile_time)), ms(idle)),
         .repair =
             "keep shapes equal in all steps, or mark the changing size as dynamic (torch._dynamo.mark_dynamic)",
         .lost = idle});
  }

  void waiting() {
    const auto sync = static_cast<double>(gaps_[GapCause::synchronize]),
               host = static_cast<double>(gaps_[GapCause::host]);
    if (sync + host <= 0) return;
    const double after = std::max(without_waiting(), step_time_ - sync - host);
    const bool holes = host > sync;
    add({.id = "launch_gaps",
         .title = holes ? "The GPU waits while the host does something else"
                        : "The host waits for the GPU and falls behind",
         .evidence = holes ? fmt::format("The GPU was idle for {:.2f} ms in which the host launched nothing.",
                                         ms(host + sync))
                           : fmt::format("The GPU was idle for {:.2f} ms after {} waits, the longest in {}.",
                                         ms(host + sync), gaps_.waits, gaps_.waited_in),
         .repair =
             holes
                 ? "prepare batches ahead in other processes, and do nothing else between launches"
                 : "remove synchronization from the step: .item(), print, torch.cuda.synchronize, copies to the host",
         .lost = step_time_ - after,
         .predicted = after});
  }

  void copies() {
    const auto copied = static_cast<double>(step_.time(WorkClass::copy));
    add({.id = "memcpy",
         .title = "Copies between host and GPU are exposed",
         .evidence = fmt::format("For {:.2f} ms the GPU only copied.", ms(copied)),
         .repair =
             "keep the data on the GPU, or copy from pinned memory on another stream (non_blocking=True)",
         .lost = copied});
  }

  /// Eager kernels that a compiler would fuse. A fused chain takes as long as its slowest kernel; a chain ends at other work and
  /// at a reduction of a whole tensor.
  void not_fused() {
    struct Part {
      double time = 0, fused = 0;
      int kernels = 0;
      double lost() const { return time - fused; }
    };
    Part casts, others;
    double generated = 0;
    Part chain;
    double slowest = 0, elements = 0;
    bool casting = false, reduces = false;
    const auto finish = [&] {
      Part& part = casting ? casts : others;
      part.time += chain.time;
      // A fused cast reads 16 bits, and writes 8 bits unless it only finds the maximum; eager ones work in FP32.
      if (casting && expected_ && elements > 0)
        slowest = std::min(slowest, expected_->stream((reduces ? 2 : 3) * elements));
      part.fused += slowest;
      part.kernels += chain.kernels;
      chain = {};
      slowest = elements = 0;
      casting = reduces = false;
    };
    for (const Work& work : step_.work) {
      if (work.generated) generated += static_cast<double>(work.duration);
      if (!fusible(work)) {
        finish();
        continue;
      }
      const bool cast = work.float8 || work.work_class == WorkClass::cast;
      if (chain.kernels > 0 && cast != casting) finish();
      casting = cast;
      chain.time += static_cast<double>(work.duration);
      slowest = std::max(slowest, static_cast<double>(work.duration));
      elements = std::max(elements, work.elements);
      ++chain.kernels;
      reduces = work.to_scalar;
      if (reduces) finish();
    }
    finish();
    const double lost = casts.lost() + others.lost();
    if (lost <= 0) return;
    const bool nothing_compiled = generated < 0.1 * (casts.time + others.time);
    const auto late = static_cast<double>(gaps_[GapCause::launch] - gaps_.in_optimizer);
    const double saved_launches =
        casts.kernels + others.kernels > static_cast<int>(step_.work.size()) / 3 ? late : 0;
    eager_ = lost + saved_launches;
    if (casts.lost() > others.lost() && !nothing_compiled) {
      add({.id = "casts",
           .title = "Casts are not fused",
           .evidence = fmt::format(
               "{} kernels of quantization take {:.2f} ms; fused they would take about {:.2f} ms.",
               casts.kernels, ms(casts.time), ms(casts.fused)),
           .repair =
               "compile the quantized linears with the rest of the block, or use fused quantization kernels",
           .lost = lost + saved_launches});
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
                                    : "torch.compile what is left out, often the loss",
         .lost = lost + saved_launches});
  }

  void launch_bound() {
    const auto late = static_cast<double>(gaps_[GapCause::launch] - gaps_.in_optimizer);
    if (eager_ > late || late < 0.1 * step_time_) return;
    add({.id = "launch_bound",
         .title = "The host launches kernels more slowly than the GPU runs them",
         .evidence = fmt::format("{} kernels in {:.2f} ms; the GPU was idle for {:.2f} ms between them.",
                                 step_.work.size(), ms(step_time_), ms(late)),
         .repair = "CUDA graphs (torch.compile(mode=\"reduce-overhead\")), or a larger batch",
         .lost = late});
  }

  void optimizer() {
    double time = 0;
    int kernels = 0;
    std::map<std::string, double> by_op;  // elements of the first inputs
    std::map<std::string, double> width;
    for (const Work& work : step_.work) {
      if (work.work_class != WorkClass::optimizer) continue;
      time += static_cast<double>(work.duration);
      ++kernels;
    }
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
    if (!expected_ || kernels < 20) return;
    // Adam divides once per parameter.
    for (const char* once :
         {"aten::addcdiv_", "aten::_foreach_addcdiv_", "aten::_fused_adamw_", "aten::_fused_adam_"}) {
      const auto found = by_op.find(once);
      if (found == by_op.end() || found->second == 0) continue;
      const double bytes =
          7 * found->second * (width.contains(once) ? width[once] : 4);  // reads p, g, m, v; writes p, m, v
      const double fused = expected_->update(bytes), gaps = static_cast<double>(gaps_.in_optimizer);
      if (time + gaps < 1.5 * fused) return;
      add({.id = "optimizer",
           .title = "The optimizer is not fused",
           .evidence =
               fmt::format("{} kernels update {:.0f} M parameters in {:.2f} ms; one pass takes {:.2f} ms.",
                           kernels, found->second / 1e6, ms(time + gaps), ms(fused)),
           .repair = "fused=True (torch.optim.AdamW), or another fused optimizer",
           .lost = time + gaps - fused});
      return;
    }
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
    add({.id = "attention",
         .title = "Attention is written out instead of fused",
         .evidence = fmt::format(
             "GEMMs and softmax over whole score matrices take {:.2f} ms; flash attention takes about {:.2f} ms.",
             ms(time), ms(fused)),
         .repair =
             "let scaled_dot_product_attention choose flash or cuDNN attention: BF16, a head size that it knows, no explicit mask",
         .lost = time - fused});
  }

  void wide_gemms() {
    double time = 0, narrow = 0;
    for (const GemmRow& row : all_.gemms) {
      if (row.shape.format != GemmFormat::fp32 || row.shape.m == 0 || !expected_) continue;
      time += static_cast<double>(row.time);
      narrow += expected_->gemm(row.shape, GemmFormat::bf16, row.wgrad) * row.calls * all_.calibration;
    }
    if (time == 0) return;
    add({.id = "fp32",
         .title = "GEMMs run in FP32",
         .evidence = fmt::format("They take {:.2f} ms; in BF16 they would take about {:.2f} ms.", ms(time),
                                 ms(narrow)),
         .repair = "run them in BF16 with FP32 accumulation (autocast, or no .float() before the linear)",
         .lost = time - narrow});
  }

  void alignment() {
    double lost = 0, time = 0;
    std::string example;
    for (const GemmRow& row : all_.gemms) {
      if (row.shape.m == 0 || row.shape.batch > 1 || aligned(row.shape) || !expected_) continue;
      const double after =
          expected_->gemm(padded(row.shape), row.shape.format, row.wgrad) * row.calls * all_.calibration;
      if (after <= 0 || static_cast<double>(row.time) < 1.15 * after) continue;
      lost += static_cast<double>(row.time) - after;
      time += static_cast<double>(row.time);
      if (example.empty()) example = fmt::format("{} x {} x {}", row.shape.m, row.shape.n, row.shape.k);
    }
    double pads = 0;
    int kernels = 0;
    for (const Work& work : step_.work) {
      bool pad = trace_.name(work.name).find("constant_pad") != std::string::npos;
      for (std::uint32_t op = work.op; op != kNoIndex && !pad; op = trace_.ops[op].parent)
        pad = trace_.name(trace_.ops[op].name) == "aten::constant_pad_nd";
      if (!pad) continue;
      pads += static_cast<double>(work.duration);
      ++kernels;
    }
    if (lost + pads == 0) return;
    add({.id = "alignment",
         .title = "Sizes of GEMMs are not aligned",
         .evidence = example.empty()
                         ? fmt::format("{} kernels pad operands, in {:.2f} ms.", kernels, ms(pads))
                         : fmt::format("GEMMs such as {} take {:.2f} ms, with aligned sizes {:.2f} ms{}.",
                                       example, ms(time), ms(time - lost),
                                       kernels ? fmt::format("; {} kernels pad operands in {:.2f} ms",
                                                             kernels, ms(pads))
                                               : ""),
         .repair =
             "make every size a multiple of 64: pad the vocabulary, choose sequences of whole multiples",
         .lost = lost + pads});
  }

  bool is_head(const GemmShape& shape) const {
    return all_.vocabulary > 0 &&
           (shape.m == all_.vocabulary || shape.n == all_.vocabulary || shape.k == all_.vocabulary);
  }

  /// Bytes that quantizing both operands of a GEMM moves: each tensor is read twice and written twice for two GEMMs.
  static double cast_bytes(const GemmShape& shape) {
    const auto m = static_cast<double>(shape.m), n = static_cast<double>(shape.n),
               k = static_cast<double>(shape.k);
    return 3 * (m * k + n * k);
  }

  void unconverted() {
    double fp8 = 0, lost = 0, time = 0, fp8_time = 0, fp8_expected = 0;
    bool rowwise = false;
    for (const GemmRow& row : all_.gemms)
      if (row.shape.format == GemmFormat::fp8) {
        fp8 += row.shape.flops() * row.calls;
        fp8_time += static_cast<double>(row.time);
        fp8_expected += row.expected;
        rowwise |= row.shape.rowwise;
      }
    if (fp8 == 0 || !expected_) return;
    const double calibration = fp8_expected > 0 ? fp8_time / fp8_expected : 1;
    std::set<std::string> shapes;
    for (const GemmRow& row : all_.gemms) {
      GemmShape shape = row.shape;
      if (!is_16_bit(shape.format) || shape.m == 0 || shape.batch > 1 || is_head(shape) || !aligned(shape) ||
          shape.m % 16 != 0 || shape.n % 16 != 0 || shape.k % 16 != 0)
        continue;
      shape.rowwise = rowwise;
      const double converted = expected_->gemm(shape, GemmFormat::fp8, row.wgrad) * calibration +
                               expected_->stream(cast_bytes(shape));
      const double gain = static_cast<double>(row.time) - converted * row.calls;
      if (converted <= 0 || gain <= 0) continue;
      lost += gain;
      time += static_cast<double>(row.time);
      if (!row.wgrad && shapes.size() < 2) shapes.insert(fmt::format("{} x {}", shape.n, shape.k));
    }
    if (lost == 0) return;
    std::string names;
    for (const std::string& one : shapes) names += (names.empty() ? "" : ", ") + one;
    add({.id = "unconverted",
         .title = "Linears are left in BF16",
         .evidence =
             fmt::format("GEMMs in BF16 beside FP8 ones ({}) take {:.2f} ms, in FP8 with casts {:.2f} ms.",
                         names, ms(time), ms(time - lost)),
         .repair = "convert them too, unless they are kept for convergence",
         .lost = lost});
  }

  void small_gemms() {
    double fp8 = 0, wide = 0, casts = 0;
    for (const GemmRow& row : all_.gemms) {
      if (row.shape.format != GemmFormat::fp8 || row.shape.m == 0 || !expected_) continue;
      fp8 += static_cast<double>(row.time);
      wide += expected_->gemm(row.shape, GemmFormat::bf16, row.wgrad) * row.calls * all_.calibration;
    }
    if (fp8 == 0) return;
    for (const Work& work : step_.work)
      if (work.work_class == WorkClass::cast && work.generated) casts += static_cast<double>(work.duration);
    if (fp8 + casts <= wide) return;
    add({.id = "small_gemms",
         .title = "GEMMs are too small for FP8",
         .evidence =
             fmt::format("FP8 GEMMs and their casts take {:.2f} ms; BF16 GEMMs would take about {:.2f} ms.",
                         ms(fp8 + casts), ms(wide)),
         .repair = "leave these linears in BF16, or raise the tokens of a batch",
         .lost = fp8 + casts - wide});
  }

  void collectives() {
    const auto exposed = static_cast<double>(step_.time(WorkClass::collective));
    double longest = 0;
    for (const Work& work : step_.work)
      if (work.work_class == WorkClass::collective)
        longest = std::max(longest, static_cast<double>(work.duration));
    // The first gather and the last reduction have nothing to hide behind.
    const double lost = exposed - longest;
    if (exposed < 0.05 * step_time_ || lost <= 0) return;
    add({.id = "collectives",
         .title = "Collectives are exposed",
         .evidence = fmt::format("For {:.2f} ms only collectives ran, the longest {:.2f} ms.", ms(exposed),
                                 ms(longest)),
         .repair = "prefetch the next block's gather, and reduce gradients while the backward pass goes on",
         .lost = lost});
  }

  void graph_breaks() {
    // A compiled region inside another one is what follows a break.
    int breaks = 0;
    std::set<std::string> regions;
    for (const HostEvent& op : trace_.ops) {
      if (op.start >= step_.host_end) break;
      if (op.start < step_.host_begin || !trace_.name(op.name).starts_with("Torch-Compiled Region")) continue;
      for (std::uint32_t outer = op.parent; outer != kNoIndex; outer = trace_.ops[outer].parent)
        if (trace_.name(trace_.ops[outer].name).starts_with("Torch-Compiled Region")) {
          ++breaks;
          regions.insert(trace_.name(op.name));
          break;
        }
    }
    const auto late = static_cast<double>(gaps_[GapCause::launch] - gaps_.in_optimizer);
    if (breaks == 0 || eager_ > late) return;
    add({.id = "graph_breaks",
         .title = "Graph breaks divide the compiled model",
         .evidence =
             fmt::format("{} times a compiled graph ended early; the GPU waited {:.2f} ms for launches.",
                         breaks, ms(late)),
         .repair = "find them with torch.compile(fullgraph=True) or TORCH_LOGS=graph_breaks",
         .lost = late});
    std::erase_if(all_.findings, [](const Finding& one) { return one.id == "launch_bound"; });
  }

  void small_batch() {
    if (!expected_ || all_.tokens == 0 || all_.tokens >= 2048) return;
    const double factor = std::ceil(4096.0 / static_cast<double>(all_.tokens));
    double larger = 0;
    const auto scaled = [&](std::int64_t size) {
      return size == all_.tokens ? static_cast<std::int64_t>(static_cast<double>(size) * factor) : size;
    };
    for (const GemmRow& row : all_.gemms) {
      GemmShape shape = row.shape;
      if (row.wgrad)
        shape.k = scaled(shape.k);
      else
        shape.m = scaled(shape.m);
      const double after =
          shape.m ? expected_->gemm(shape, shape.format, row.wgrad) * row.calls * all_.calibration : 0;
      larger += after > 0 ? after : static_cast<double>(row.time) * factor;
    }
    for (const Work& work : step_.work) {
      const auto time = static_cast<double>(work.duration);
      if (work.work_class == WorkClass::gemm) continue;
      if (work.work_class == WorkClass::optimizer)
        larger += time;
      else
        larger += work.bytes > 0 ? time + (factor - 1) * std::min(time, expected_->stream(work.bytes))
                                 : time * factor;
    }
    larger += static_cast<double>(gaps_[GapCause::device]);
    const double now = larger / factor;
    if (now > 0.9 * step_time_) return;
    add({.id = "small_batch",
         .title = "The batch is too small",
         .evidence = fmt::format(
             "{} tokens per step; with {:.0f} times as many a step takes {:.2f} ms, {:.2f} ms per {} tokens.",
             all_.tokens, factor, ms(larger), ms(now), all_.tokens),
         .repair = "more sequences per GPU and step, as memory allows",
         .lost = step_time_ - now,
         .predicted = now,
         .more_tokens = factor});
  }

  const TrainingTrace& trace_;
  Explanation& all_;
  const StepWork& step_;
  const Gaps& gaps_;
  const Expectation* expected_;
  double step_time_ = 0, busy_ = 0;
  double eager_ = 0;  ///< lost because kernels are not fused
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
