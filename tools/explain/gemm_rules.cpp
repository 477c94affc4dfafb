// Rules about GEMMs: format, sizes, alignment, tokens of a batch. See rules.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "tools/explain/rules.h"

namespace precbench {
namespace {

/// Returns the shape with its sizes rounded up to a multiple of 64.
GemmShape padded(GemmShape shape) {
  for (std::int64_t* size : {&shape.m, &shape.n, &shape.k}) *size = (*size + 63) / 64 * 64;
  return shape;
}

/// Returns true for a kernel that copies an operand of a GEMM into a larger one: an eager pad, or what torch.compile
/// puts before GEMMs with a vocabulary that is no multiple of 8.
bool pads_operand(const StepRepairs& step, const Work& work) {
  if (step.trace.any_around(work.op, [](const std::string& name) { return name == "aten::constant_pad_nd"; }))
    return true;
  const std::string& name = step.trace.name(work.name);
  if (!work.generated || step.all.vocabulary % 8 == 0) return false;
  return name.starts_with("triton_poi_fused_") && name.find("mm_") != std::string::npos &&
         work.elements >= static_cast<double>(step.all.vocabulary);
}

bool is_head(const StepRepairs& step, const GemmShape& shape) {
  return step.all.vocabulary > 0 &&
         (shape.m == step.all.vocabulary || shape.n == step.all.vocabulary || shape.k == step.all.vocabulary);
}

/// Returns the elements of both operands of a GEMM.
double operands(const GemmShape& shape) {
  const auto m = static_cast<double>(shape.m), n = static_cast<double>(shape.n),
             k = static_cast<double>(shape.k);
  return m * k + n * k;
}

/// Returns the time that quantizing takes in this step, for each element of an FP8 GEMM's operands. Kernels that also
/// do other work count whole, since that work would be fused into a kernel that exists anyway.
double cast_time_per_element(const StepRepairs& step) {
  double time = 0, elements = 0;
  for (const Work& work : step.work.work) {
    const std::string& name = step.trace.name(work.name);
    if (work.generated && (name.find("clamp") != std::string::npos || name.find("abs_") != std::string::npos))
      time += static_cast<double>(work.duration);
  }
  for (const GemmRow& row : step.all.gemms)
    if (row.shape.format == GemmFormat::fp8) elements += operands(row.shape) * row.calls;
  return elements > 0 ? std::max(time / elements, step.expected->stream(3)) : 0;
}

}  // namespace

void find_wide_gemms(StepRepairs& step) {
  double time = 0, narrow = 0;
  std::map<GemmShape, double> factors;
  for (const GemmRow& row : step.all.gemms) {
    if (row.shape.format != GemmFormat::fp32 || row.shape.m == 0 || !step.expected) continue;
    const double after =
        step.expected->gemm(row.shape, GemmFormat::bf16, row.wgrad) * row.calls * step.all.calibration;
    if (after <= 0 || row.time <= 0) continue;
    time += static_cast<double>(row.time);
    narrow += after;
    factors[row.shape] = after / static_cast<double>(row.time);
  }
  if (time == 0) return;
  step.add({.id = "fp32",
            .title = "GEMMs run in FP32",
            .evidence = fmt::format("They take {:.2f} ms; in BF16 they would take about {:.2f} ms.",
                                    ms_of(time), ms_of(narrow)),
            .repair = "run them in BF16 with FP32 accumulation (autocast, or no .float() before the linear)"},
           step.with_gemms(factors));
}

void find_alignment(StepRepairs& step) {
  double lost = 0, time = 0, pads = 0;
  int kernels = 0;
  std::string example;
  std::map<GemmShape, double> factors;
  for (const GemmRow& row : step.all.gemms) {
    if (row.shape.m == 0 || !row.shape.single() || is_aligned(row.shape) || !step.expected) continue;
    const double after = step.expected->gemm(padded(row.shape), row.shape.format, row.wgrad) * row.calls *
                         step.all.calibration;
    if (after <= 0 || static_cast<double>(row.time) < 1.15 * after) continue;
    lost += static_cast<double>(row.time) - after;
    time += static_cast<double>(row.time);
    factors[row.shape] = after / static_cast<double>(row.time);
    if (example.empty()) example = fmt::format("{} x {} x {}", row.shape.m, row.shape.n, row.shape.k);
  }
  ReplayItems repaired = step.with_gemms(factors);
  for (ReplayItem& item : repaired) {
    if (item.waits || !pads_operand(step, step.work_of(item))) continue;
    pads += item.duration;
    ++kernels;
    remove_launch(item);
  }
  if (lost + pads == 0) return;
  const std::string padding = fmt::format("{} kernels only pad operands, in {:.2f} ms", kernels, ms_of(pads));
  step.add(
      {.id = "alignment",
       .title = "Sizes of GEMMs are not aligned",
       .evidence = example.empty()
                       ? padding + "."
                       : fmt::format("GEMMs such as {} take {:.2f} ms, with aligned sizes {:.2f} ms{}.",
                                     example, ms_of(time), ms_of(time - lost), kernels ? "; " + padding : ""),
       .repair = "make every size a multiple of 64: pad the vocabulary, choose sequences of whole multiples"},
      repaired);
}

void find_unconverted(StepRepairs& step) {
  double lost = 0, time = 0, fp8_time = 0, fp8_expected = 0;
  GemmScales scales = GemmScales::tensor;
  for (const GemmRow& row : step.all.gemms)
    if (row.shape.format == GemmFormat::fp8) {
      fp8_time += static_cast<double>(row.time);
      fp8_expected += row.expected;
      scales = std::max(scales, row.shape.scales);
    }
  if (fp8_time == 0 || !step.expected) return;
  const double calibration = fp8_expected > 0 ? fp8_time / fp8_expected : 1;
  const double cast = cast_time_per_element(step);
  std::set<std::string> shapes;
  std::map<GemmShape, double> factors;
  for (const GemmRow& row : step.all.gemms) {
    GemmShape shape = row.shape;
    if (!is_16_bit(shape.format) || shape.m == 0 || !shape.single() || is_head(step, shape) ||
        row.time <= 0 || shape.m % 16 != 0 || shape.n % 16 != 0 || shape.k % 16 != 0)
      continue;
    shape.scales = scales;
    const double gemm = step.expected->gemm(shape, GemmFormat::fp8, row.wgrad);
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
  step.add({.id = "unconverted",
            .title = "Linears are left in BF16",
            .evidence =
                fmt::format("GEMMs in BF16 beside FP8 ones ({}) take {:.2f} ms, in FP8 with casts {:.2f} ms.",
                            names, ms_of(time), ms_of(time - lost)),
            .repair = "convert them too, unless they are kept for convergence"},
           step.with_gemms(factors));
}

void find_small_gemms(StepRepairs& step) {
  double fp8 = 0, wide = 0, casts = 0;
  std::map<GemmShape, double> factors;
  for (const GemmRow& row : step.all.gemms) {
    if (row.shape.format != GemmFormat::fp8 || row.shape.m == 0 || !step.expected || row.time <= 0) continue;
    const double after =
        step.expected->gemm(row.shape, GemmFormat::bf16, row.wgrad) * row.calls * step.all.calibration;
    fp8 += static_cast<double>(row.time);
    wide += after;
    factors[row.shape] = after / static_cast<double>(row.time);
  }
  if (fp8 == 0) return;
  ReplayItems repaired = step.with_gemms(factors);
  int launches = 0;
  for (ReplayItem& item : repaired) {
    if (item.waits || step.work_of(item).work_class != WorkClass::cast || !step.work_of(item).generated)
      continue;
    casts += item.duration;
    ++launches;
    remove_launch(item);
  }
  step.add(
      {.id = "small_gemms",
       .title = "GEMMs are too small for FP8",
       .evidence = fmt::format(
           "FP8 GEMMs and {} casts take {:.2f} ms and their launches; BF16 GEMMs would take about {:.2f} ms.",
           launches, ms_of(fp8 + casts), ms_of(wide)),
       .repair = "leave these linears in BF16, or raise the tokens of a batch"},
      repaired, true);
}

void find_small_batch(StepRepairs& step) {
  if (!step.expected || step.all.tokens == 0 || step.all.tokens >= 2048) return;
  const double factor = std::ceil(4096.0 / static_cast<double>(step.all.tokens));
  const auto times = [&](std::int64_t size) {
    return static_cast<std::int64_t>(static_cast<double>(size) * factor);
  };
  std::map<GemmShape, double> factors;
  for (const GemmRow& row : step.all.gemms) {
    GemmShape shape = row.shape;
    (row.wgrad ? shape.k : shape.m) = times(row.wgrad ? shape.k : shape.m);
    const double after =
        shape.m ? step.expected->gemm(shape, shape.format, row.wgrad) * row.calls * step.all.calibration : 0;
    factors[row.shape] = after > 0 && row.time > 0 ? after / static_cast<double>(row.time) : factor;
  }
  const ReplayItems larger = step.scaled([&](const Work& work) {
    if (work.gemm) return factors.contains(*work.gemm) ? factors[*work.gemm] : factor;
    if (work.work_class == WorkClass::optimizer || work.duration <= 0) return 1.0;
    const double time = static_cast<double>(work.duration);
    return work.bytes > 0 ? (time + (factor - 1) * std::min(time, step.expected->stream(work.bytes))) / time
                          : factor;
  });
  const double after = step.time_of(larger), share = after / factor;
  if (share > 0.9 * step.now) return;
  step.add({.id = "small_batch",
            .title = "The batch is too small",
            .evidence = fmt::format(
                "{} tokens per step; with {:.0f} times as many a step takes {:.2f} ms, {:.2f} ms per {} tokens.",
                step.all.tokens, factor, ms_of(after), ms_of(share), step.all.tokens),
            .repair = "more sequences per GPU and step, as memory allows",
            .more_tokens = factor},
           share);
}

}  // namespace precbench
