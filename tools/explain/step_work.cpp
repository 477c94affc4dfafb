// Finds the steps of a trace and classifies their kernels. See step_work.h.
#include "tools/explain/step_work.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <queue>

namespace precbench {
namespace {

std::string lowered(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

bool has_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

double bytes_of_type(const std::string& type) {
  if (has_any(type, {"Float8", "float8", "Byte", "unsigned char", "signed char", "bool"})) return 1;
  if (has_any(type, {"BFloat16", "Half", "short"})) return 2;
  if (has_any(type, {"double", "long"})) return 8;
  return 4;
}

GemmFormat format_of_type(const std::string& type) {
  if (has_any(type, {"BFloat16"})) return GemmFormat::bf16;
  if (has_any(type, {"Half"})) return GemmFormat::fp16;
  if (has_any(type, {"Float8"})) return GemmFormat::fp8;
  if (has_any(type, {"Float4"})) return GemmFormat::fp4;
  if (has_any(type, {"signed char", "Char"})) return GemmFormat::int8;
  if (type == "float") return GemmFormat::fp32;
  return GemmFormat::unknown;
}

/// Returns the format that the name of a GEMM kernel tells.
GemmFormat format_of_kernel(const std::string& name) {
  if (has_any(name, {"e4m3", "e5m2", "fp8", "nvjet_qq", "Float8"})) return GemmFormat::fp8;
  if (has_any(name, {"e2m1", "fp4"})) return GemmFormat::fp4;
  if (has_any(name, {"bf16", "BF16", "bfloat16", "nvjet_tst", "nvjet_sm100_tst"})) return GemmFormat::bf16;
  if (has_any(name, {"fp16", "f16", "h16816", "nvjet_hsh", "hgemm"})) return GemmFormat::fp16;
  if (has_any(name, {"sgemm", "f32f32", "tf32"})) return GemmFormat::fp32;
  return GemmFormat::unknown;
}

constexpr std::string_view kGemmOps[] = {
    "aten::mm",         "aten::addmm",   "aten::bmm",         "aten::baddbmm",
    "aten::_scaled_mm", "aten::_int_mm", "aten::_grouped_mm", "aten::_scaled_grouped_mm"};

bool is_gemm_op(std::string_view op) {
  return std::find(std::begin(kGemmOps), std::end(kGemmOps), op) != std::end(kGemmOps);
}

/// Fills in what the trace says about one kernel.
class Describer {
 public:
  explicit Describer(const TrainingTrace& trace) : trace_(trace) {}

  Work describe(const GpuEvent& event) const {
    Work work;
    work.start = event.start;
    work.duration = event.duration;
    work.name = event.name;
    work.op = event.op;
    work.call = event.call;
    work.stream = event.stream;
    work.fill = event.work == GpuWork::set;
    if (event.call != kNoIndex) work.launched = trace_.calls[event.call].start;
    std::vector<std::string_view> ops;
    for (std::uint32_t op = event.op; op != kNoIndex && ops.size() < 200; op = trace_.ops[op].parent)
      ops.push_back(trace_.name(trace_.ops[op].name));
    const std::string& kernel = trace_.name(event.name);
    work.generated = kernel.starts_with("triton_");
    for (const std::string_view op : ops) {
      work.backward |= has_any(op, {"Backward", "autograd::engine"});
      work.float8 |= has_any(op, {"float8", "Float8", "fp8_", "quantize"});
    }
    const OpInputs* inputs = nullptr;
    for (std::uint32_t op = event.op; op != kNoIndex && !inputs; op = trace_.ops[op].parent) {
      if (trace_.ops[op].inputs != kNoIndex) inputs = &trace_.inputs[trace_.ops[op].inputs];
      if (ops.size() > 200) break;
    }
    if (inputs)
      for (std::size_t i = 0; i < inputs->dims.size(); ++i) {
        double count = static_cast<double>(inputs->elements[i]);
        if (!inputs->dims[i].empty())
          count = std::accumulate(inputs->dims[i].begin(), inputs->dims[i].end(), 1.0,
                                  [](double a, std::int64_t b) { return a * static_cast<double>(b); });
        work.elements = std::max(work.elements, count);
        work.bytes += count * (i < inputs->types.size() ? bytes_of_type(inputs->types[i]) : 2);
      }
    if (event.work != GpuWork::kernel) {
      // Fills and copies between tensors on the GPU are elementwise work.
      work.work_class = event.work == GpuWork::copy && !has_any(kernel, {"DtoD", "Device -> Device"})
                            ? WorkClass::copy
                            : WorkClass::elementwise;
      return work;
    }
    work.work_class = classify(kernel, ops);
    if (work.work_class == WorkClass::gemm) {
      for (std::uint32_t op = event.op; op != kNoIndex && !work.gemm; op = trace_.ops[op].parent)
        if (trace_.ops[op].inputs != kNoIndex)
          work.gemm = gemm_of(trace_.name(trace_.ops[op].name), trace_.inputs[trace_.ops[op].inputs]);
      if (work.gemm && work.gemm->format == GemmFormat::unknown) work.gemm->format = format_of_kernel(kernel);
      if (!work.gemm) {
        work.gemm = GemmShape{};
        work.gemm->format = format_of_kernel(kernel);
      }
    }
    work.to_scalar = !work.generated && !ops.empty() &&
                     has_any(ops.front(), {"aten::max", "aten::amax", "aten::sum", "aten::norm",
                                           "aten::linalg_vector_norm"}) &&
                     has_any(kernel, {"reduce_kernel"});
    return work;
  }

 private:
  const TrainingTrace& trace_;
};

/// Order in which classes that run at the same time own it.
int precedence(WorkClass work_class) {
  switch (work_class) {
    case WorkClass::collective:
      return 2;
    case WorkClass::copy:
      return 1;
    case WorkClass::idle:
      return 0;
    default:
      return 3;
  }
}

/// Divides the window among the classes.
void attribute(StepWork& step) {
  struct Edge {
    std::int64_t time;
    std::size_t work;
    bool begins;
  };
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < step.work.size(); ++i) {
    const std::int64_t begin = std::clamp(step.work[i].start, step.begin, step.end),
                       end = std::clamp(step.work[i].end(), step.begin, step.end);
    if (begin >= end) continue;
    edges.push_back({begin, i, true});
    edges.push_back({end, i, false});
  }
  std::stable_sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.time < b.time; });
  std::array<int, kWorkClasses> running{};
  std::int64_t at = step.begin;
  const auto owner = [&] {
    WorkClass best = WorkClass::idle;
    for (int c = 0; c < kWorkClasses; ++c)
      if (running[static_cast<std::size_t>(c)] > 0 &&
          precedence(static_cast<WorkClass>(c)) > precedence(best))
        best = static_cast<WorkClass>(c);
    return best;
  };
  for (const Edge& edge : edges) {
    step.exclusive[static_cast<std::size_t>(owner())] += edge.time - at;
    at = edge.time;
    running[static_cast<std::size_t>(step.work[edge.work].work_class)] += edge.begins ? 1 : -1;
  }
  step.exclusive[static_cast<std::size_t>(owner())] += step.end - at;
}

/// Marks GEMMs and softmax of attention that is written out: two batched GEMMs per layer over [T, T] scores.
void mark_math_attention(StepWork& step) {
  double scores = 0;
  for (const Work& work : step.work)
    if (work.gemm && work.gemm->batch > 1 && work.gemm->k <= 256 && work.gemm->m >= 4 * work.gemm->k &&
        work.gemm->n >= 4 * work.gemm->k)
      scores = std::max(scores, static_cast<double>(work.gemm->batch) * static_cast<double>(work.gemm->m) *
                                    static_cast<double>(work.gemm->n));
  if (scores == 0) return;
  for (Work& work : step.work) {
    const double elements =
        work.gemm
            ? std::max(
                  {static_cast<double>(work.gemm->batch * work.gemm->m) * static_cast<double>(work.gemm->n),
                   static_cast<double>(work.gemm->batch * work.gemm->m) * static_cast<double>(work.gemm->k),
                   static_cast<double>(work.gemm->batch * work.gemm->n) * static_cast<double>(work.gemm->k)})
            : work.elements;
    const bool batched = work.gemm && work.gemm->batch > 1;
    const bool pointwise = work.work_class == WorkClass::elementwise || work.work_class == WorkClass::loss ||
                           work.work_class == WorkClass::attention || work.work_class == WorkClass::norm;
    if ((batched || pointwise) && elements >= 0.9 * scores && elements <= 1.1 * scores) {
      work.math_attention = true;
      work.work_class = WorkClass::attention;
    }
  }
}

}  // namespace

const char* name_of(WorkClass work_class) {
  static constexpr const char* names[] = {"GEMM",        "attention", "casts",     "norms",
                                          "elementwise", "loss",      "embedding", "optimizer",
                                          "collectives", "copies",    "unknown",   "idle"};
  return names[static_cast<std::size_t>(work_class)];
}

const char* name_of(GemmFormat format) {
  static constexpr const char* names[] = {"BF16", "FP16", "FP32", "FP8", "FP4", "INT8", "unknown format"};
  return names[static_cast<std::size_t>(format)];
}

std::string format_text(const GemmShape& shape) {
  const std::string format = name_of(shape.format);
  switch (shape.scales) {
    case GemmScales::row:
      return format + " rowwise";
    case GemmScales::block:
      return format + " blockwise";
    case GemmScales::mx:
      return "MX" + format;
    case GemmScales::nvfp4:
      return "NV" + format;
    default:
      return format;
  }
}

std::optional<GemmShape> gemm_of(std::string_view op, const OpInputs& inputs) {
  if (!is_gemm_op(op)) return std::nullopt;
  const std::size_t first = op == "aten::addmm" || op == "aten::baddbmm" ? 1 : 0;
  if (inputs.dims.size() < first + 2) return std::nullopt;
  const auto &a = inputs.dims[first], &b = inputs.dims[first + 1];
  const bool scaled = op.find("_scaled") != std::string_view::npos,
             grouped = op.find("_grouped") != std::string_view::npos;
  GemmShape shape;
  if (a.size() == 2 && b.size() == 2) {
    shape.m = a[0], shape.k = a[1], shape.n = b[1];
    if (b[0] != a[1]) return std::nullopt;
    // The ends of the groups are a vector with one entry for each.
    const std::size_t ends = scaled ? 4 : 2;
    shape.k_divided = grouped && inputs.dims.size() > ends && inputs.dims[ends].size() == 1;
    if (shape.k_divided) shape.groups = inputs.dims[ends][0];
  } else if (grouped && a.size() == 2 && b.size() == 3) {
    shape.groups = b[0], shape.m = a[0], shape.k = a[1], shape.n = b[2];
    if (b[1] != a[1]) return std::nullopt;
  } else if (grouped && a.size() == 3 && b.size() == 2) {  // the same, transposed
    shape.groups = a[0], shape.m = b[1], shape.k = a[2], shape.n = a[1];
    if (b[0] != a[2]) return std::nullopt;
  } else if (a.size() == 3 && b.size() == 3) {
    shape.batch = a[0], shape.m = a[1], shape.k = a[2], shape.n = b[2];
    if (b[1] != a[2] || b[0] != a[0]) return std::nullopt;
  } else {
    return std::nullopt;
  }
  if (std::min({shape.batch, shape.m, shape.n, shape.k, shape.groups}) < 1 ||
      std::max({shape.batch, shape.m, shape.n, shape.k, shape.groups}) > 1'000'000'000)
    return std::nullopt;
  if (inputs.types.size() > first + 1) {
    shape.format = format_of_type(inputs.types[first]);
    shape.e5m2 = has_any(inputs.types[first], {"e5m2"}) || has_any(inputs.types[first + 1], {"e5m2"});
  }
  if (inputs.types.size() > first && has_any(inputs.types[first], {"_x2"})) shape.k *= 2;  // two in a byte
  if (!scaled || inputs.dims.size() < 3) return shape;
  const auto& scale = inputs.dims[2];
  const std::string type = inputs.types.size() > 2 ? inputs.types[2] : "";
  if (has_any(type, {"e8m0"}))
    shape.scales = GemmScales::mx;
  else if (has_any(type, {"Float8"}))
    shape.scales = GemmScales::nvfp4;
  else if (scale.size() == 2 && scale[0] > 1)
    shape.scales = scale[1] > 1 ? GemmScales::block : GemmScales::row;
  else if (grouped && scale.size() == 1 && scale[0] > 1)  // rows of all groups in turn
    shape.scales = GemmScales::row;
  return shape;
}

WorkClass classify(const std::string& kernel, const std::vector<std::string_view>& ops) {
  const std::string name = lowered(kernel);
  const std::string op = ops.empty() ? "" : lowered(ops.front());
  if (has_any(name, {"nccl", "allreduce", "all_reduce", "allgather", "all_gather", "reducescatter",
                     "reduce_scatter", "nvshmem"}))
    return WorkClass::collective;
  for (const std::string_view outer : ops)
    if (outer.starts_with("Optimizer.step")) return WorkClass::optimizer;
  if (has_any(name, {"multi_tensor_apply", "adam", "lion_kernel", "muon"}) ||
      has_any(op, {"_fused_adam", "_foreach_", "fused_sgd"}))
    return WorkClass::optimizer;
  if (has_any(name, {"flash", "fmha", "sdpa", "attention", "attn"}) ||
      has_any(op, {"flash_attention", "cudnn_attention", "efficient_attention", "flex_attention"}))
    return WorkClass::attention;
  if (name.starts_with("triton_")) {
    if (name.starts_with("triton_tem") && has_any(name, {"mm"})) return WorkClass::gemm;
    if (has_any(name, {"log_softmax", "nll_loss", "cross_entropy"})) return WorkClass::loss;
    if (has_any(name, {"embedding"})) return WorkClass::embedding;
    if (has_any(name, {"rsqrt", "native_layer_norm", "rms_norm"})) return WorkClass::norm;
    if (has_any(name, {"amax", "clamp", "float8"}) &&
        !has_any(name, {"silu", "sigmoid", "gelu", "softmax", "cat"}))
      return WorkClass::cast;
    return WorkClass::elementwise;
  }
  // A subclass of tensors dispatches from a GEMM to other operations, which launch kernels of their own.
  if (!ops.empty() && is_gemm_op(ops.front()) && !has_any(name, {"elementwise"})) return WorkClass::gemm;
  if (has_any(name, {"gemm", "nvjet", "cutlass", "cublas", "splitk", "xmma", "wgmma"}))
    return WorkClass::gemm;
  if (has_any(name, {"embedding"}) || has_any(op, {"embedding"})) return WorkClass::embedding;
  if (has_any(name, {"nll_loss", "cross_entropy", "crossentropy"}) ||
      has_any(op, {"log_softmax", "nll_loss", "cross_entropy"}))
    return WorkClass::loss;
  if (has_any(name, {"rms_norm", "rmsnorm", "layer_norm", "layernorm", "gammabeta"}) ||
      has_any(op, {"rms_norm", "layer_norm"}))
    return WorkClass::norm;
  if (has_any(name, {"amax", "float8", "fp8", "quantize", "cast_transpose", "mxfp", "nvfp4"}))
    return WorkClass::cast;
  for (const std::string_view outer : ops)
    if (has_any(outer, {"float8", "Float8", "fp8"})) return WorkClass::cast;
  if (has_any(name, {"elementwise", "reduce_kernel", "catarray", "copy",   "fill",   "index",
                     "softmax",     "gather",        "scatter",  "memset", "arange", "distribution",
                     "dropout",     "silu",          "gelu",     "swiglu", "rope",   "transpose",
                     "scan",        "compare",       "where"}) ||
      op.starts_with("aten::"))
    return WorkClass::elementwise;
  return WorkClass::unknown;
}

TraceSteps find_steps(const TrainingTrace& trace) {
  const Describer describer(trace);
  std::vector<Work> all;
  all.reserve(trace.gpu.size());
  for (const GpuEvent& event : trace.gpu) all.push_back(describer.describe(event));
  std::int64_t last_end = 0;
  for (const Work& work : all) last_end = std::max(last_end, work.end());

  struct Mark {
    std::int64_t begin, end;
  };
  std::vector<Mark> marks;
  TraceSteps steps;
  for (const HostEvent& op : trace.ops)
    if (trace.name(op.name).starts_with("ProfilerStep#") && marks.size() < 100'000)
      marks.push_back({op.start, op.end()});
  std::vector<std::size_t> step_of(all.size(), 0);
  if (!marks.empty()) {
    steps.marks = StepMarks::profiler;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::int64_t at = all[i].launched >= 0 ? all[i].launched : all[i].start;
      const auto after =
          std::upper_bound(marks.begin(), marks.end(), at,
                           [](std::int64_t time, const Mark& mark) { return time < mark.begin; });
      step_of[i] = static_cast<std::size_t>(after - marks.begin());  // 0: before the first
    }
  } else {
    // A step ends with the last kernel of a run of optimizer kernels.
    std::size_t count = 0, others = 0;
    bool updating = false;
    std::vector<std::int64_t> ends;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].work_class == WorkClass::optimizer) {
        if (!updating || ends.empty()) ends.push_back(all[i].end());
        ends.back() = std::max(ends.back(), all[i].end());
        updating = true;
        others = 0;
      } else if (updating && ++others >= 10) {
        updating = false;
      }
    }
    if (ends.size() >= 2) {
      steps.marks = StepMarks::optimizer;
      for (std::size_t i = 0; i + 1 < ends.size(); ++i) marks.push_back({ends[i], ends[i + 1]});
      for (std::size_t i = 0; i < all.size(); ++i)
        step_of[i] =
            static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), all[i].start) - ends.begin());
      count = ends.size();
    }
    if (count < 2) {
      marks = {{all.front().start, last_end}};
      std::fill(step_of.begin(), step_of.end(), 1);
    }
  }

  std::vector<StepWork> windows(marks.size());
  std::int64_t before = 0;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (step_of[i] == 0) before = std::max(before, all[i].end());
  std::vector<std::int64_t> ends(marks.size(), 0);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (step_of[i] >= 1 && step_of[i] <= marks.size())
      ends[step_of[i] - 1] = std::max(ends[step_of[i] - 1], all[i].end());
  for (std::size_t i = 0; i < marks.size(); ++i) {
    StepWork& window = windows[i];
    window.host_begin = marks[i].begin;
    window.host_end = marks[i].end;
    window.begin = std::max(marks[i].begin, before);
    const std::int64_t next = i + 1 < marks.size() ? marks[i + 1].begin : marks[i].end;
    window.end = std::max({next, ends[i], window.begin});
    if (steps.marks == StepMarks::none) window.end = last_end;
    before = window.end;
    steps.durations.push_back(window.duration());
  }
  // Choose the step of median length; the first begins with an idle GPU. Steps without kernels are those whose kernels
  // are beyond the limits, or no training steps.
  std::vector<std::size_t> order(windows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (order.size() > 1 && steps.marks == StepMarks::profiler) order.erase(order.begin());
  std::vector<bool> works(windows.size(), false);
  for (const std::size_t number : step_of)
    if (number >= 1 && number <= works.size()) works[number - 1] = true;
  if (std::any_of(order.begin(), order.end(), [&](std::size_t i) { return works[i]; }))
    std::erase_if(order, [&](std::size_t i) { return !works[i]; });
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return steps.durations[a] < steps.durations[b]; });
  steps.chosen = order[order.size() / 2];
  StepWork& step = windows[steps.chosen];
  for (std::size_t i = 0; i < all.size(); ++i)
    if (step_of[i] == steps.chosen + 1) step.work.push_back(all[i]);
  // The last step ends with the profiler's own wait: another one tells.
  const std::size_t last = windows.size() - 1, told = steps.chosen < last ? steps.chosen
                                                      : last > 0          ? last - 1
                                                                          : windows.size();
  if (told < windows.size()) {
    std::int64_t launched = 0;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (step_of[i] == told + 1) launched = std::max(launched, all[i].launched);
    for (const HostEvent& call : trace.calls)
      steps.waits_at_end |= call.start > launched && call.end() <= marks[told].end + 1 &&
                            trace.name(call.name).find("Synchronize") != std::string::npos;
  }
  mark_math_attention(step);
  attribute(step);
  steps.step = std::move(step);
  return steps;
}

}  // namespace precbench
