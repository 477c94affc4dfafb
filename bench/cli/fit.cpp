// The candidates of a change, and the search among them. See fit.h.
#include "bench/cli/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "bench/case/plan.h"
#include "bench/machine/datasheet.h"
#include "bench/machine/machine.h"
#include "bench/machine/machine_names.h"
#include "kernels/base/errors.h"
#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

std::string source_of_memory(double gb) {
  return fmt::format("{:.0f}% of the data sheet's {:g} GB", 100 * kUsableMemory, gb);
}

/// Returns what `work` computes from the plan of a case; null if the case cannot run.
template <class Work>
auto if_it_runs(const Case& c, const Work& work) -> std::optional<decltype(work(Plan()))> {
  try {
    if (const Plan plan = validate(c); !unsupported_reason(plan)) return work(plan);
  } catch (const InvalidInput&) {
  } catch (const Unsupported&) {
  } catch (const OutOfMemory&) {
  }
  return std::nullopt;
}

std::optional<std::int64_t> peak_of(const Case& c) {
  return if_it_runs(c, [](const Plan& plan) { return predict(plan).memory.peak; });
}

/// Returns the FLOPs of a rank's step, with those that recomputation repeats; null if the case cannot run.
std::optional<double> executed_flops(const Case& c) {
  return if_it_runs(c, [](const Plan& plan) { return dry_run(plan, nullptr).model_flops(); });
}

/// Returns the fields in which `to` differs from `from`.
Change change_between(const Case& from, const Case& to, std::int64_t peak) {
  Change change{{}, peak};
  for (const Field& field : case_fields())
    if (const std::string value = get_text(to, field); value != get_text(from, field))
      change.flags.emplace_back(flag_of(field), value);
  return change;
}

/// One kind of change. Returns the changed cases from the smallest change to the largest; none if it does not
/// apply to the case.
using Measure = std::function<std::vector<Case>(const Case&)>;

Case with_recompute(Case c, const std::string& recompute) {
  c.recompute = recompute;
  return c;
}

/// Returns the case with every recomputation that repeats more work than its own, from the least to the most:
/// parts of all blocks, or all of the first eighths of them.
std::vector<Case> more_recompute(const Case& c) {
  constexpr std::int64_t kSteps = 8;
  const std::optional<double> own = executed_flops(c), none = executed_flops(with_recompute(c, "none"));
  if (!own || !none) return {};
  std::vector<std::pair<double, std::string>> levels;
  for (const char* text : {"norm", "attention+norm", "ffn+norm", "attention+ffn+norm", "selective", "block"})
    if (const auto flops = executed_flops(with_recompute(c, text))) levels.emplace_back(*flops, text);
  if (!levels.empty() && levels.back().second == "block") {
    const std::int64_t layers = validate(c).model.layers;
    const double block = levels.back().first - *none;
    for (std::int64_t i = 1; i < kSteps && i < layers; ++i) {
      const std::int64_t blocks = layers < kSteps ? i : layers * i / kSteps;
      levels.emplace_back(*none + block * static_cast<double>(blocks) / static_cast<double>(layers),
                          fmt::format("block:{}", blocks));
    }
  }
  std::stable_sort(levels.begin(), levels.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Case> cases;
  for (const auto& [flops, text] : levels)
    if (flops >= *own && text != c.recompute) cases.push_back(with_recompute(c, text));
  return cases;
}

/// Returns the strongest of these, for searches that combine measures, and norms, which need no weights again.
std::vector<Case> strong_recompute(const Case& c) {
  std::vector<Case> cases;
  if (c.recompute == "block") return cases;
  if (c.recompute == "none") cases.push_back(with_recompute(c, "norm"));
  for (const char* text : {"attention+ffn+norm", "block"})
    if (c.recompute != text) cases.push_back(with_recompute(c, text));
  return cases;
}

/// A measure that sets a field to a value.
Measure set_to(const char* name, const char* value) {
  return [name, value](const Case& c) {
    Case changed = c;
    set_text(changed, *find_field(name), value);
    return changed == c ? std::vector<Case>{} : std::vector{changed};
  };
}

std::vector<Case> sharded(const Case& c) {
  if (c.gpus == 1 || c.parallel != "ddp") return {};
  Case changed = c;
  changed.parallel = "fsdp";
  return {changed};
}

/// Halves the micro-batch and doubles the accumulation, which leaves the tokens of a step as they are.
std::vector<Case> smaller_batches(const Case& c) {
  std::vector<Case> all;
  for (Case changed = c; changed.batch % 2 == 0;) {
    changed.batch /= 2;
    changed.accumulation *= 2;
    all.push_back(changed);
  }
  return all;
}

std::vector<Case> more_ranks(const Case& c) {
  std::vector<Case> all;
  for (std::int64_t factor = 2; factor <= kMostRanks && c.gpus * factor <= kMostRanks; factor *= 2) {
    Case changed = c;
    changed.gpus *= factor;
    if (changed.parallel == "ddp") changed.parallel = "fsdp";
    all.push_back(changed);
  }
  return all;
}

const std::vector<Measure>& measures() {
  static const std::vector<Measure> all = {set_to("grad_sync", "every"),
                                           strong_recompute,
                                           sharded,
                                           set_to("gather", "fp8"),
                                           set_to("moments", "bf16"),
                                           set_to("grads", "bf16"),
                                           smaller_batches,
                                           set_to("master", "bf16_sr"),
                                           more_ranks};
  return all;
}

/// Returns the changed case with the recomputation that repeats least and still fits.
Case with_least_recompute(const Case& c, const Case& changed, const MemoryLimit& limit) {
  if (changed.recompute == c.recompute) return changed;
  for (const Case& less : more_recompute(with_recompute(changed, c.recompute)))
    if (const auto peak = peak_of(less); peak && fits(*peak, limit)) return less;
  return changed;
}

Change change_to(const Case& c, const Case& changed, const MemoryLimit& limit) {
  const Case least = with_least_recompute(c, changed, limit);
  return change_between(c, least, peak_of(least).value());
}

/// Returns the first level of one measure with which the case fits.
std::optional<Change> single_change(const Case& c, const MemoryLimit& limit) {
  for (const Measure& measure : measures())
    for (const Case& changed : measure(c))
      if (const auto peak = peak_of(changed); peak && fits(*peak, limit)) return change_to(c, changed, limit);
  return std::nullopt;
}

/// Returns the first two measures, each at one level, with which the case fits.
std::optional<Change> pair_of_changes(const Case& c, const MemoryLimit& limit) {
  const std::vector<Measure>& all = measures();
  for (std::size_t first = 0; first < all.size(); ++first)
    for (std::size_t second = first + 1; second < all.size(); ++second)
      for (const Case& half : all[first](c))
        for (const Case& changed : all[second](half))
          if (const auto peak = peak_of(changed); peak && fits(*peak, limit))
            return change_to(c, changed, limit);
  return std::nullopt;
}

/// Applies measures one after the other, each at the level that suffices or saves most, until the case fits.
std::optional<Case> with_all_measures(const Case& c, const MemoryLimit& limit) {
  Case best = c;
  std::optional<std::int64_t> least = peak_of(c);
  for (const Measure& measure : measures())
    for (const Case& changed : measure(best)) {
      const auto peak = peak_of(changed);
      if (!peak || (least && *peak >= *least)) continue;
      best = changed;
      least = peak;
      if (fits(*peak, limit)) return best;
    }
  return std::nullopt;
}

/// Takes back every field that is not needed, from what a user would least like to change, and as much of the
/// smaller batch as possible.
Case without_needless(const Case& c, Case changed, const MemoryLimit& limit) {
  static constexpr const char* kLeastWanted[] = {"master", "grads",     "moments",
                                                 "gather", "grad_sync", "recompute"};
  const auto keep_if_it_fits = [&](const Case& simpler) {
    const auto peak = peak_of(simpler);
    const bool good = peak && fits(*peak, limit);
    if (good) changed = simpler;
    return good;
  };
  for (const char* name : kLeastWanted) {
    Case simpler = changed;
    const Field& field = *find_field(name);
    set_text(simpler, field, get_text(c, field));
    keep_if_it_fits(simpler);
  }
  while (changed.batch < c.batch) {
    Case larger = changed;
    larger.batch *= 2;
    larger.accumulation /= 2;
    if (!keep_if_it_fits(larger)) break;
  }
  return changed;
}

/// Returns the reason why a segment is larger in quantized recipes.
const char* reason_of(Segment segment) {
  switch (segment) {
    case Segment::activations:
      return "quantized copies of X and dY, rowwise for fprop and dgrad and columnwise for wgrad, beside BF16 values";
    case Segment::quantized_weights:
      return "quantized copy of a layer's weights beside the BF16 ones";
    case Segment::communication:
      return "gathered weights in both formats";
    case Segment::workspace:
      return "operands quantized again, and scratch of the GEMMs";
    case Segment::moments:
    case Segment::master:
    case Segment::gradients:
    case Segment::weights:
      return "the recipe's own format of this state, with scales";
    case Segment::other:
      break;
  }
  return "scales and amax histories";
}

}  // namespace

std::string gib(std::int64_t bytes) {
  const double value = static_cast<double>(bytes) / (1 << 30);
  return fmt::format("{:.{}f}", value, value < 10 ? 3 : 1);
}

MemoryLimit memory_limit_of(const Machine& machine) {
  return {gpu_name_of(machine), usable_bytes(machine), source_of_memory(machine.memory_gb)};
}

std::optional<MemoryLimit> find_memory_limit(const std::string& name) {
  if (!name.empty()) {
    const DatasheetGpu gpu = find_datasheet_gpu(name);
    return MemoryLimit{gpu.name, gpu.bytes, source_of_memory(gpu.memory_gb)};
  }
  std::optional<MemoryLimit> smallest;
  for (int ordinal = 0; ordinal < find_gpus().count; ++ordinal)
    if (const std::int64_t bytes = gpu_memory(ordinal).total_bytes; !smallest || bytes < smallest->bytes)
      smallest = MemoryLimit{gpu_properties(ordinal).name, bytes, "of this machine"};
  return smallest;
}

std::string Change::text() const {
  std::vector<std::string> words;
  for (const auto& [flag, value] : flags) words.push_back(flag + " " + value);
  return fmt::format("{}", fmt::join(words, " "));
}

std::optional<Change> nearest_change(const Plan& plan, const MemoryLimit& limit) {
  const Case& c = plan.fields;
  if (auto change = single_change(c, limit)) return change;
  if (auto change = pair_of_changes(c, limit)) return change;
  const std::optional<Case> all = with_all_measures(c, limit);
  if (!all) return std::nullopt;
  return change_to(c, without_needless(c, *all, limit), limit);
}

std::vector<Change> runnable_changes(const Plan& plan) {
  if (!plan.fp8_gather || !plan.recipe.quantized()) return {};
  const Case& c = plan.fields;
  std::vector<Change> changes;
  for (const Case& changed : set_to("gather", "bf16")(c))
    if (const auto peak = peak_of(changed)) changes.push_back(change_between(c, changed, *peak));
  Case fewer = c;
  for (fewer.gpus /= 2; fewer.gpus > 1 && c.parallel == "fsdp"; fewer.gpus /= 2)
    if (const auto peak = peak_of(fewer)) {
      changes.push_back(change_between(c, fewer, *peak));
      break;
    }
  return changes;
}

std::optional<std::string> extra_memory(const Prediction& recipe, const Prediction& bf16) {
  constexpr double kWorthTelling = 0.01;
  constexpr std::int64_t kLeastTold = std::int64_t{1} << 20;  // bytes; less prints as 0.000 GiB
  const std::int64_t more = recipe.at_peak.total() - bf16.at_peak.total();
  if (more < kLeastTold ||
      static_cast<double>(more) <= kWorthTelling * static_cast<double>(bf16.at_peak.total()))
    return std::nullopt;
  std::vector<std::pair<std::int64_t, Segment>> segments;
  for (int i = 0; i < kSegments; ++i)
    segments.emplace_back(recipe.at_peak.bytes[i] - bf16.at_peak.bytes[i], static_cast<Segment>(i));
  std::sort(segments.begin(), segments.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> words;
  std::int64_t explained = 0;
  for (const auto& [bytes, segment] : segments) {
    if (bytes < kLeastTold || explained * 10 >= more * 9) break;  // the rest is small
    std::string name = name_of(segment);
    std::replace(name.begin(), name.end(), '_', ' ');
    words.push_back(fmt::format("{} +{} ({})", name, gib(bytes), reason_of(segment)));
    explained += bytes;
  }
  return fmt::format("{} GiB more than bf16 at the peak: {}", gib(more), fmt::join(words, ", "));
}

}  // namespace precbench
