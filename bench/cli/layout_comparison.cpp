// Predicts published layouts and proposals. See layout_comparison.h.
#include "bench/cli/layout_comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "bench/cli/fit.h"
#include "bench/cli/predictions.h"
#include "bench/predict/case_layout.h"
#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/parallel.h"
#include "results/text/lines.h"
#include "results/text/table.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr LayoutVerdict kVerdicts[] = {LayoutVerdict::proposed, LayoutVerdict::faster, LayoutVerdict::neither,
                                       LayoutVerdict::unknown};

/// Returns a value with as many digits as a page shows, so that other compilers' last bits do not matter.
double four_digits(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double scale = std::pow(10, 3 - static_cast<int>(std::floor(std::log10(std::abs(value)))));
  return std::round(value * scale) / scale;
}

/// Numbers of tensor, context, pipeline and expert ranks.
using Ranks = std::array<std::int64_t, 4>;

Ranks ranks_of(const LayoutComparison& one) {
  const ParallelLayout& layout = one.setting.layout;
  return {layout.tensor, layout.context, layout.pipeline, one.experts};
}
Ranks ranks_of(const LayoutProposal& proposal) {
  const Case& c = proposal.plan.fields;
  return {c.tensor, c.context, c.pipeline, c.ep};
}

const char* overlap_of(const ParallelLayout& layout) {
  return layout.tensor_overlap    ? layout.context_overlap ? "all" : "tensor"
         : layout.context_overlap ? "context"
                                  : "none";
}

/// Returns the question whose answer is compared with a published setting.
LayoutQuestion question_of(const PublishedPoint& point, const PublishedSetting& setting) {
  static const Case defaults;
  LayoutQuestion question;
  Case& c = question.c = setting.c;
  for (const char* name : kSearchedFields) {
    const Field& field = *find_field(name);
    set_text(c, field, get_text(defaults, field));
  }
  c.accumulation = defaults.accumulation;
  c.exchange = defaults.exchange, c.slots = defaults.slots;
  c.model = point.model;
  c.gpus = setting.layout.ranks();
  c.overlap = overlap_of(setting.layout);
  question.global_batch = setting.c.batch * setting.c.accumulation * setting.layout.data;
  question.memory = memory_limit_of(setting.machine).bytes - kContextBytes;
  question.proposals = kComparedProposals;
  return question;
}

/// Returns the first rule of a search that leaves a published layout out; empty if the search tries it.
std::string left_out(const LayoutComparison& one, const LayoutQuestion& question) {
  const PublishedSetting& s = one.setting;
  const LayoutSpace space = layout_space(question, s.model, s.machine);
  if (s.recompute.blocks > 0 && (s.recompute.blocks < 1 || s.recompute.gemms < 1))
    return "recomputes parts of some blocks, which the search does not try";
  struct Tried {
    const char* name;
    std::int64_t value;
    const std::vector<std::int64_t>& values;
  };
  for (const auto& [name, value, values] :
       {Tried{"tensor ranks", s.layout.tensor, space.tensor},
        Tried{"context ranks", s.layout.context, space.context},
        Tried{"stages", s.layout.pipeline, space.pipeline},
        Tried{"groups of layers a stage", s.layout.interleave, space.virtual_stages},
        Tried{"sequences a micro-batch", s.c.batch, space.batch},
        Tried{"expert ranks", one.experts, space.ep}})
    if (std::find(values.begin(), values.end(), value) == values.end())
      return fmt::format("has {} {}, which the search does not try", value, name);
  return "";
}

std::string neither_text(const LayoutComparison& one, const LayoutQuestion& question) {
  if (!one.fits)
    return fmt::format("the published layout needs {} GiB by the memory model, of {}{}",
                       gib(one.published.peak_bytes), gib(question.memory),
                       one.setting.assumed.empty()
                           ? ""
                           : fmt::format("; assumed: {}", fmt::join(one.setting.assumed, ", ")));
  if (one.found.proposals.empty())
    return one.found.least_bytes ? fmt::format("nothing fits: the smallest layout needs {} GiB of {}",
                                               gib(*one.found.least_bytes), gib(question.memory))
                                 : "unsupported: " + one.found.unsupported_reason;
  if (std::string why = left_out(one, question); !why.empty()) return "the published layout " + why;
  return one.found.complete ? "not explained" : "the search ended before it tried all layouts";
}

/// Returns the names of a layout's groups. Where experts' ranks are all traced ranks, their all-to-all has the group of the
/// gradients, which move once a step.
std::vector<std::string> axes_of(const CaseLayout& layout, const ModelConfig& model, std::int64_t experts,
                                 const std::vector<std::vector<int>>& comms) {
  std::vector<std::string> axes = axes_of_layout(layout, model, comms, axis_of);
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (experts > 1 && static_cast<std::int64_t>(comms[i].size()) == experts && axes[i] != "tensor")
      axes[i] = "experts";
  return axes;
}

LayoutComparison compare(const PublishedPoint& point, const PublishedSetting& setting,
                         const CostModel& cost_model) {
  LayoutComparison one;
  one.id = point.id, one.framework = point.framework;
  one.setting = setting;
  one.experts = point.ep.value_or(1);
  PublishedSetting& s = one.setting;
  if (s.model.moe) {  // rows travel by all-to-all, as in proposals
    s.c.ep = Case{}.ep;
    s.layout.experts = static_cast<int>(one.experts);
  }
  try {
    const LayoutQuestion question = question_of(point, s);
    one.published = estimate_layout(s.c, s.model, s.layout, s.recompute, cost_model);
    one.fits = one.published.peak_bytes <= question.memory;
    one.found = best_layouts(question, cost_model);
    const std::vector<LayoutProposal>& proposals = one.found.proposals;
    for (std::size_t i = 0; i < proposals.size() && one.place == 0; ++i)
      if (ranks_of(proposals[i]) == ranks_of(one)) one.place = i + 1;
    const bool ours_is_faster =
        !proposals.empty() && proposals.front().estimate.step.seconds < one.published.step.seconds;
    one.verdict = one.place > 0    ? LayoutVerdict::proposed
                  : ours_is_faster ? LayoutVerdict::faster
                                   : LayoutVerdict::neither;
    if (one.verdict == LayoutVerdict::neither) {
      one.reason = neither_text(one, question);
    } else if (one.place != 1 && ours_is_faster) {
      const LayoutProposal& best = proposals.front();
      one.reason = savings_text(
          parts_of_step(one.published, axes_of({s.c, s.layout}, s.model, one.experts, one.published.comms)),
          parts_of_step(best.estimate, axes_of(case_layout(best.plan), best.plan.model, best.plan.fields.ep,
                                               best.estimate.comms)));
    }
  } catch (const InvalidInput& error) {
    one.reason = error.what();
  } catch (const Unsupported& error) {
    one.reason = error.what();
  }
  return one;
}

/// Returns "TP 4, PP 8 x 4, EP 32", without axes of one rank.
std::string layout_text(const Ranks& ranks, std::int64_t virtual_stages) {
  std::vector<std::string> texts;
  for (const auto& [name, value] :
       {std::pair{"TP", ranks[0]}, {"CP", ranks[1]}, {"PP", ranks[2]}, {"EP", ranks[3]}})
    if (value > 1)
      texts.push_back(name == std::string("PP") && virtual_stages > 1
                          ? fmt::format("{} {} x {}", name, value, virtual_stages)
                          : fmt::format("{} {}", name, value));
  return texts.empty() ? "data" : fmt::format("{}", fmt::join(texts, ", "));
}

Json ranks_json(const Ranks& ranks, std::int64_t virtual_stages) {
  return {{"tensor", ranks[0]},
          {"context", ranks[1]},
          {"pipeline", ranks[2]},
          {"virtual_stages", virtual_stages},
          {"ep", ranks[3]}};
}

}  // namespace

const char* name_of(LayoutVerdict verdict) {
  static constexpr EnumNames<LayoutVerdict, 4> kNames{
      {"among the first three", "another is faster", "neither", "not predicted"}};
  return kNames.of(verdict);
}

double LayoutComparison::ratio() const {
  return found.proposals.empty() ? 0 : published.step.seconds / found.proposals.front().estimate.step.seconds;
}

std::vector<PublishedPoint> runs_with_layouts(const std::vector<PublishedPoint>& points) {
  constexpr std::int64_t kLeastGpus = 16;
  std::set<std::tuple<std::string, std::string, std::int64_t, std::int64_t, std::int64_t,
                      std::vector<std::int64_t>>>
      seen;
  std::vector<PublishedPoint> runs;
  for (const PublishedPoint& p : points) {
    const std::vector<std::int64_t> layout = {p.tp.value_or(1), p.cp.value_or(1), p.pp.value_or(1),
                                              p.ep.value_or(1)};
    if (!p.framework.starts_with("megatron") || p.gpus.value_or(0) < kLeastGpus || !p.seq ||
        !p.global_batch || *std::max_element(layout.begin(), layout.end()) == 1)
      continue;
    if (seen.insert({p.model, p.gpu, *p.gpus, *p.seq, *p.global_batch, layout}).second) runs.push_back(p);
  }
  return runs;
}

std::vector<LayoutComparison> compare_layouts(const std::vector<PublishedPoint>& points) {
  std::vector<LayoutComparison> comparisons(points.size());
  std::vector<std::pair<PublishedSetting, const CostModel*>> settings(points.size());
  std::map<std::string, CostModel> models;
  for (std::size_t i = 0; i < points.size(); ++i) {
    try {
      PublishedSetting& setting = settings[i].first = published_setting(points[i]);
      std::string key = setting.machine.name;
      for (const NetworkLevel& level : setting.machine.levels)
        key += fmt::format("/{}:{}", level.gpus, level.gb_per_s);
      settings[i].second = &models.try_emplace(key, setting.machine).first->second;
    } catch (const InvalidInput& error) {
      comparisons[i].id = points[i].id;
      comparisons[i].reason = error.what();
    }
  }
  for_each_index(points.size(), points.size(), [&](std::size_t i) {
    if (const auto& [setting, cost_model] = settings[i]; cost_model)
      comparisons[i] = compare(points[i], setting, *cost_model);
  });
  return comparisons;
}

Json comparison_json(const LayoutComparison& one) {
  Json json = {{"id", one.id}, {"verdict", name_of(one.verdict)}};
  if (!one.reason.empty()) json["reason"] = one.reason;
  if (one.verdict == LayoutVerdict::unknown) return json;
  const PublishedSetting& s = one.setting;
  json["recipe"] = s.c.recipe;
  json["published"] = ranks_json(ranks_of(one), s.layout.interleave);
  json["published"]["batch"] = s.c.batch;
  json["published"]["step_s"] = four_digits(one.published.step.seconds);
  json["published"]["gib"] = four_digits(static_cast<double>(one.published.peak_bytes) / 1073741824.0);
  json["published"]["fits"] = one.fits;
  json["place"] = one.place;
  json["ratio"] = four_digits(one.ratio());
  json["proposals"] = Json::array();
  for (const LayoutProposal& proposal : one.found.proposals) {
    const Case& c = proposal.plan.fields;
    Json ours = ranks_json(ranks_of(proposal), c.virtual_stages);
    for (const char* name : {"batch", "parallel", "shard_optimizer", "recompute"})
      ours[name] = field_to_json(c, *find_field(name));
    ours["step_s"] = four_digits(proposal.estimate.step.seconds);
    ours["gib"] = four_digits(static_cast<double>(proposal.estimate.peak_bytes) / 1073741824.0);
    json["proposals"].push_back(std::move(ours));
  }
  return json;
}

void print_comparisons(const std::vector<LayoutComparison>& comparisons) {
  Table table;
  table.columns = {name_column("run"),
                   text_column("recipe", kKeyRank - 3),
                   text_column("published", kKeyRank - 1),
                   number_column("ms/step", kKeyRank - 2),
                   number_column("GiB/GPU", kKeyRank - 4),
                   text_column("first proposal", kKeyRank - 1),
                   number_column("ms/step", kKeyRank - 2),
                   number_column("GiB/GPU", kKeyRank - 4),
                   number_column("times as fast", kKeyRank),
                   text_column("verdict", kKeyRank)};
  for (const LayoutComparison& one : comparisons) {
    if (one.verdict == LayoutVerdict::unknown) continue;
    const PublishedSetting& s = one.setting;
    std::vector<std::string> row = {one.id, s.c.recipe, layout_text(ranks_of(one), s.layout.interleave),
                                    ms_text(1e3 * one.published.step.seconds), gib(one.published.peak_bytes)};
    if (one.found.proposals.empty()) {
      row.insert(row.end(), {"-", "-", "-", "-"});
    } else {
      const LayoutProposal& best = one.found.proposals.front();
      row.insert(row.end(), {layout_text(ranks_of(best), best.plan.fields.virtual_stages),
                             ms_text(1e3 * best.estimate.step.seconds), gib(best.estimate.peak_bytes),
                             fmt::format("{:.2f}x", one.ratio())});
    }
    row.push_back(one.place > 0 ? fmt::format("{}: place {}", name_of(one.verdict), one.place)
                                : name_of(one.verdict));
    table.rows.push_back(std::move(row));
  }
  const Screen screen = plain_screen(STDOUT_FILENO);
  if (!table.rows.empty()) fmt::print("{}\n", render_term(table, screen));
  for (const LayoutComparison& one : comparisons)
    if (!one.reason.empty())
      fmt::print("{}",
                 paragraph(fmt::format("{}: {}: {}", one.id, name_of(one.verdict), one.reason), screen));
  std::vector<std::string> counts;
  for (const LayoutVerdict verdict : kVerdicts)
    if (const auto count = std::count_if(comparisons.begin(), comparisons.end(),
                                         [&](const LayoutComparison& one) { return one.verdict == verdict; }))
      counts.push_back(fmt::format("{} {}", count, name_of(verdict)));
  fmt::print("{}",
             paragraph(fmt::format("{}: {}", plural(static_cast<std::int64_t>(comparisons.size()), "run"),
                                   fmt::join(counts, ", ")),
                       screen));
}

}  // namespace precbench
