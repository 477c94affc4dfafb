// Renders explanations. See explain_output.h.
#include "tools/explain/explain_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/plural.h"
#include "results/record/printable.h"
#include "results/text/lines.h"
#include "results/text/table.h"
#include "tools/text/figure_data.h"
#include "tools/text/text.h"

namespace precbench {
namespace {

constexpr double kNsPerMs = 1e6;
constexpr std::size_t kMostGemmRows = 12, kMostUnknownRows = 8;
constexpr std::int64_t kShownNs = 10'000;  ///< parts are shown in hundredths of a millisecond

std::string ms_text(double ns) { return fmt::format("{:.2f}", ns / kNsPerMs); }
std::string share_text(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : "-";
}

int count_of(const StepWork& step, WorkClass work_class) {
  return static_cast<int>(std::count_if(step.work.begin(), step.work.end(),
                                        [&](const Work& work) { return work.work_class == work_class; }));
}

std::string shape_text(const GemmShape& shape) {
  if (shape.m == 0) return "unknown shape";
  return fmt::format("{}{} x {} x {}{}", shape.batch > 1 ? fmt::format("{} x ", shape.batch) : "", shape.m,
                     shape.n, shape.k, shape.groups > 1 ? fmt::format(", {} groups", shape.groups) : "");
}

std::string marks_text(const TraceSteps& steps) {
  switch (steps.marks) {
    case StepMarks::profiler:
      return fmt::format("step {} of {}", steps.chosen + 1, steps.durations.size());
    case StepMarks::optimizer:
      return fmt::format("step {} of {}, told by the optimizer's kernels", steps.chosen + 1,
                         steps.durations.size());
    default:
      break;
  }
  return "no steps marked: the whole trace is taken as one";
}

/// Returns kernels of unknown class by name, longest first.
std::vector<std::pair<std::string, std::int64_t>> unknown_kernels(const ExplainedTrace& one) {
  std::map<std::string, std::int64_t> times;
  for (const Work& work : one.all.steps.step.work)
    if (work.work_class == WorkClass::unknown) times[one.trace.name(work.name)] += work.duration;
  std::vector<std::pair<std::string, std::int64_t>> sorted(times.begin(), times.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.second > b.second; });
  return sorted;
}

/// Returns what was left out of the trace, one line each.
std::vector<std::string> remarks(const ExplainedTrace& one) {
  std::vector<std::string> lines;
  const TrainingTrace& trace = one.trace;
  if (one.rates_of.empty())
    lines.push_back(fmt::format(
        "No rates for \"{}\": nothing is expected, and findings that need it are left out; name a GPU with --gpu.",
        trace.gpu_name.empty() ? "a GPU without a name" : trace.gpu_name));
  else if (one.borrowed)
    lines.push_back(fmt::format("Expected times are borrowed: {} has no measured rates.", one.rates_of));
  if (trace.malformed)
    lines.push_back(
        fmt::format("{} without a name or a possible time, left out.", plural(trace.malformed, "event")));
  if (trace.beyond)
    lines.push_back(fmt::format("{} beyond the limits, left out.", plural(trace.beyond, "event")));
  if (trace.other_devices)
    lines.push_back(fmt::format("{} of other GPUs, left out.", plural(trace.other_devices, "kernel")));
  std::int64_t unlaunched = 0;
  for (const Work& work : one.all.steps.step.work) unlaunched += work.launched < 0;
  if (unlaunched)
    lines.push_back(fmt::format("{} without the call that launched them.", plural(unlaunched, "kernel")));
  return lines;
}

std::string summary(const ExplainedTrace& one, const Screen& screen) {
  const StepWork& step = one.all.steps.step;
  const auto whole = static_cast<double>(step.duration());
  std::string text = paragraph(
      fmt::format("{}: {}, step {} ms ({}), {}{}", short_name(one.trace.file),
                  one.trace.gpu_name.empty() ? "unknown GPU" : one.trace.gpu_name, ms_text(whole),
                  marks_text(one.all.steps), plural(static_cast<std::int64_t>(step.work.size()), "kernel"),
                  one.all.tokens ? fmt::format(", {} tokens", one.all.tokens) : ""),
      screen);
  Table table;
  table.columns = {name_column("operation"), number_column("kernels", kDetailRank),
                   number_column("ms", kKeyRank), number_column("share"), number_column("expected (ms)")};
  double gemm_expected = 0;
  bool all_expected = true;
  for (const GemmRow& row : one.all.gemms) {
    gemm_expected += row.expected;
    all_expected &= row.expected > 0;
  }
  std::vector<WorkClass> classes;
  std::vector<std::int64_t> times;
  for (int c = 0; c < kWorkClasses; ++c)
    if (step.exclusive[static_cast<std::size_t>(c)] > 0) {
      classes.push_back(static_cast<WorkClass>(c));
      times.push_back(step.exclusive[static_cast<std::size_t>(c)]);
    }
  const std::vector<std::int64_t> shown = rounded_parts(0, times, kShownNs);
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const int count = count_of(step, classes[i]);
    const bool gemm = classes[i] == WorkClass::gemm && all_expected && gemm_expected > 0;
    table.rows.push_back(
        {name_of(classes[i]), count ? std::to_string(count) : "", ms_text(static_cast<double>(shown[i + 1])),
         share_text(static_cast<double>(times[i]), whole), gemm ? ms_text(gemm_expected) : "-"});
  }
  std::int64_t total = 0;
  for (const std::int64_t part : shown) total += part;
  table.rows.push_back(
      {"step", std::to_string(step.work.size()), ms_text(static_cast<double>(total)), "100.0%", "-"});
  text += render_term(table, screen);
  return text;
}

std::string gemm_table(const ExplainedTrace& one, const Screen& screen) {
  Table table;
  table.columns = {name_column("GEMM (m x n x k)"), text_column("format"),          number_column("calls"),
                   number_column("ms", kKeyRank),   number_column("expected (ms)"), number_column("TFLOP/s")};
  std::size_t left = 0;
  std::int64_t left_time = 0;
  for (const GemmRow& row : one.all.gemms) {
    if (table.rows.size() >= kMostGemmRows) {
      ++left;
      left_time += row.time;
      continue;
    }
    const double flops = row.shape.flops() * row.calls;
    table.rows.push_back(
        {shape_text(row.shape), format_text(row.shape), std::to_string(row.calls),
         ms_text(static_cast<double>(row.time)), row.expected > 0 ? ms_text(row.expected) : "-",
         row.shape.m && row.time > 0 ? fmt::format("{:.0f}", flops / static_cast<double>(row.time) / 1e3)
                                     : "-"});
  }
  if (table.rows.empty()) return "";
  std::string text = "\n" + render_term(table, screen);
  if (left)
    text += fmt::format("and {} of other shapes, {} ms\n", left, ms_text(static_cast<double>(left_time)));
  return text;
}

std::string findings_text(const ExplainedTrace& one, const Screen& screen) {
  const double whole = one.all.unprofiled;
  if (one.all.findings.empty())
    return fmt::format("\nNo lost time above {:.0f}% of the step was found.\n", 100 * kLeastLoss);
  std::string text = fmt::format("\nLost time of a step of {} ms without the profiler; each repair alone:\n",
                                 ms_text(whole));
  int number = 0;
  for (const Finding& finding : one.all.findings) {
    text += paragraph(fmt::format("{}. {}: {} ms of the step ({})", ++number, finding.title,
                                  ms_text(finding.lost), share_text(finding.lost, whole)),
                      screen, "   ");
    for (const std::string& line : {finding.evidence, fmt::format("Repair: {}.", finding.repair)})
      text += "   " + hanging(printable(line), 3, screen) + "\n";
    text += fmt::format("   Predicted step: {} ms{} ({:.2f}x as fast)\n", ms_text(finding.predicted),
                        finding.more_tokens > 1 ? " for as many tokens" : "",
                        finding.predicted > 0 ? whole / finding.predicted : 0);
  }
  return text;
}

std::string waterfall_text(const ExplainedTrace& a, const ExplainedTrace& b, const Screen& screen) {
  const Waterfall fall = waterfall_of(a.all, b.all);
  std::string text =
      "\n" +
      paragraph(fmt::format("{} is {:.2f}x as fast as {}; the parts of the difference add up:",
                            short_name(b.trace.file),
                            fall.to > 0 ? static_cast<double>(fall.from) / static_cast<double>(fall.to) : 0,
                            short_name(a.trace.file)),
                screen);
  Table table;
  table.columns = {name_column("operation"), number_column("first (ms)"), number_column("second (ms)"),
                   number_column("difference (ms)", kKeyRank)};
  std::vector<std::int64_t> differences;
  for (const WaterfallPart& part : fall.parts) differences.push_back(part.difference());
  const std::vector<std::int64_t> shown = rounded_parts(fall.from, differences, kShownNs);
  table.rows.push_back({"step, first trace", ms_text(static_cast<double>(shown[0])), "", ""});
  std::int64_t end = shown[0];
  for (std::size_t i = 0; i < fall.parts.size(); ++i) {
    end += shown[i + 1];
    table.rows.push_back({fall.parts[i].name, ms_text(static_cast<double>(fall.parts[i].from)),
                          ms_text(static_cast<double>(fall.parts[i].to)),
                          fmt::format("{:+.2f}", static_cast<double>(shown[i + 1]) / kNsPerMs)});
  }
  table.rows.push_back({"step, second trace", "", ms_text(static_cast<double>(end)),
                        fmt::format("{:+.2f}", static_cast<double>(end - shown[0]) / kNsPerMs)});
  text += render_term(table, screen);
  if (fall.work_ratio > 0 && std::abs(fall.work_ratio - 1) > 0.02)
    text += paragraph(
        fmt::format("The second step has {:.2f}x the GEMM FLOPs of the first: these are not the same step.",
                    fall.work_ratio),
        screen);
  return text;
}

/// Returns the waits of two ranks of one job for each other; null for other traces.
std::optional<RankWaits> rank_waits(const ExplainedTrace& a, const ExplainedTrace& b) {
  if (a.trace.rank < 0 || b.trace.rank < 0 || a.trace.rank == b.trace.rank || a.trace.ranks != b.trace.ranks)
    return std::nullopt;
  return waits_of_ranks(a.all.steps.step, b.all.steps.step);
}

std::string ranks_text(const ExplainedTrace& a, const ExplainedTrace& b, const Screen& screen) {
  const auto waits = rank_waits(a, b);
  if (!waits) return "";
  std::string text = fmt::format(
      "Ranks {} and {} of {}: in {} rank {} waits {} ms for the other, rank {} {} ms.", a.trace.rank,
      b.trace.rank, a.trace.ranks, plural(waits->collectives, "collective"), a.trace.rank,
      ms_text(static_cast<double>(waits->first)), b.trace.rank, ms_text(static_cast<double>(waits->second)));
  const std::int64_t late = waits->first - waits->second;
  if (static_cast<double>(std::abs(late)) >= kLeastLoss * a.all.unprofiled)
    text += fmt::format(" Rank {} is late: repair what takes it longer, not the collectives.",
                        late > 0 ? b.trace.rank : a.trace.rank);
  return "\n" + paragraph(text, screen);
}

std::string notes_text(const ExplainedTrace& one, const Screen& screen) {
  std::string text;
  const auto unknown = unknown_kernels(one);
  if (!unknown.empty()) {
    text += "\nKernels of unknown kind:\n";
    for (std::size_t i = 0; i < std::min(unknown.size(), kMostUnknownRows); ++i)
      text += indented_line(fmt::format("{} ms  {}", ms_text(static_cast<double>(unknown[i].second)),
                                        unknown[i].first.substr(0, 120)),
                            screen);
    if (unknown.size() > kMostUnknownRows)
      text += fmt::format("  and {} more\n", unknown.size() - kMostUnknownRows);
  }
  for (const std::string& line : remarks(one)) text += paragraph(line, screen);
  return text;
}

nlohmann::ordered_json trace_json(const ExplainedTrace& one) {
  const StepWork& step = one.all.steps.step;
  const auto ms = [](double ns) { return ns / kNsPerMs; };
  nlohmann::ordered_json json = {{"file", printable(one.trace.file)},
                                 {"format", one.trace.format},
                                 {"gpu", printable(one.trace.gpu_name)},
                                 {"rates", one.rates_of},
                                 {"rates_borrowed", one.borrowed},
                                 {"step_ms", ms(static_cast<double>(step.duration()))},
                                 {"steps", one.all.steps.durations.size()},
                                 {"step", one.all.steps.chosen + 1},
                                 {"tokens", one.all.tokens}};
  json["classes"] = nlohmann::ordered_json::array();
  for (int c = 0; c < kWorkClasses; ++c)
    if (const std::int64_t time = step.exclusive[static_cast<std::size_t>(c)]; time > 0)
      json["classes"].push_back({{"class", name_of(static_cast<WorkClass>(c))},
                                 {"kernels", count_of(step, static_cast<WorkClass>(c))},
                                 {"ms", ms(static_cast<double>(time))}});
  json["gemms"] = nlohmann::ordered_json::array();
  for (const GemmRow& row : one.all.gemms)
    json["gemms"].push_back(
        {{"batch", row.shape.batch},
         {"m", row.shape.m},
         {"n", row.shape.n},
         {"k", row.shape.k},
         {"format", name_of(row.shape.format)},
         {"scaled_format", format_text(row.shape)},
         {"groups", row.shape.groups},
         {"calls", row.calls},
         {"ms", ms(static_cast<double>(row.time))},
         {"expected_ms", row.expected > 0 ? nlohmann::ordered_json(ms(row.expected)) : nullptr}});
  json["idle"] = {{"between_queued_kernels_ms", ms(static_cast<double>(one.all.gaps[GapCause::device]))},
                  {"launching_ms", ms(static_cast<double>(one.all.gaps[GapCause::launch]))},
                  {"synchronization_ms", ms(static_cast<double>(one.all.gaps[GapCause::synchronize]))},
                  {"host_ms", ms(static_cast<double>(one.all.gaps[GapCause::host]))},
                  {"compilation_ms", ms(static_cast<double>(one.all.gaps[GapCause::compile]))}};
  json["step_without_profiler_ms"] = ms(one.all.unprofiled);
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : one.all.findings)
    json["findings"].push_back({{"id", finding.id},
                                {"title", finding.title},
                                {"lost_ms", ms(finding.lost)},
                                {"predicted_step_ms", ms(finding.predicted)},
                                {"more_tokens", finding.more_tokens},
                                {"evidence", printable(finding.evidence)},
                                {"repair", finding.repair}});
  json["unknown_kernels"] = nlohmann::ordered_json::array();
  for (const auto& [name, time] : unknown_kernels(one))
    json["unknown_kernels"].push_back({{"name", printable(name)}, {"ms", ms(static_cast<double>(time))}});
  json["remarks"] = remarks(one);
  for (auto& line : json["remarks"]) line = printable(line.get<std::string>());
  return json;
}

}  // namespace

std::string short_name(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return printable(slash == std::string::npos ? path : path.substr(slash + 1));
}

std::string explain_text(const std::vector<ExplainedTrace>& traces, const Screen& screen) {
  std::string text;
  for (const ExplainedTrace& one : traces) {
    if (!text.empty()) text += "\n";
    text +=
        summary(one, screen) + gemm_table(one, screen) + findings_text(one, screen) + notes_text(one, screen);
  }
  if (traces.size() == 2)
    text += waterfall_text(traces[0], traces[1], screen) + ranks_text(traces[0], traces[1], screen);
  return text;
}

nlohmann::ordered_json explain_json(const std::vector<ExplainedTrace>& traces) {
  nlohmann::ordered_json json;
  json["traces"] = nlohmann::ordered_json::array();
  for (const ExplainedTrace& one : traces) json["traces"].push_back(trace_json(one));
  if (traces.size() == 2) {
    const Waterfall fall = waterfall_of(traces[0].all, traces[1].all);
    nlohmann::ordered_json parts = nlohmann::ordered_json::array();
    for (const WaterfallPart& part : fall.parts)
      parts.push_back({{"part", part.name},
                       {"from_ns", part.from},
                       {"to_ns", part.to},
                       {"difference_ns", part.difference()}});
    json["waterfall"] = {{"from_ns", fall.from}, {"to_ns", fall.to}, {"parts", parts}};
    json["waterfall"]["gemm_flops_ratio"] =
        fall.work_ratio > 0 ? nlohmann::ordered_json(fall.work_ratio) : nullptr;
    if (const auto waits = rank_waits(traces[0], traces[1]))
      json["ranks"] = {{"collectives", waits->collectives},
                       {"first_waits_ns", waits->first},
                       {"second_waits_ns", waits->second}};
  }
  return json;
}

Document explain_figure(const std::vector<ExplainedTrace>& traces) {
  // plots/style.gp has nine colors: small classes share one.
  const std::vector<std::pair<std::string, std::vector<WorkClass>>> groups = {
      {"GEMM", {WorkClass::gemm}},
      {"attention", {WorkClass::attention}},
      {"casts", {WorkClass::cast}},
      {"elementwise", {WorkClass::norm, WorkClass::elementwise, WorkClass::loss, WorkClass::embedding}},
      {"optimizer", {WorkClass::optimizer}},
      {"transfers", {WorkClass::collective, WorkClass::copy}},
      {"unknown", {WorkClass::unknown}},
      {"idle", {WorkClass::idle}}};
  std::vector<std::string> parts, labels;
  std::vector<std::vector<double>> values;
  for (const auto& [name, classes] : groups) parts.push_back(name);
  parts.emplace_back("after the repair");
  for (const ExplainedTrace& one : traces) {
    const StepWork& step = one.all.steps.step;
    labels.push_back(
        fmt::format("{}: {} ms", short_name(one.trace.file), ms_text(static_cast<double>(step.duration()))));
    std::vector<double>& bar = values.emplace_back();
    for (const auto& [name, classes] : groups) {
      double time = 0;
      for (const WorkClass work_class : classes)
        time += static_cast<double>(step.time(work_class)) / kNsPerMs;
      bar.push_back(time);
    }
    bar.push_back(0);
    for (const Finding& finding : one.all.findings) {
      labels.push_back(fmt::format("{} repaired: {} ms", finding.id, ms_text(finding.predicted)));
      values.emplace_back(groups.size(), 0).push_back(finding.predicted / kNsPerMs);
    }
  }
  Document document;
  Section section;
  section.figures.push_back(
      {"explain", "time",
       fmt::format("{} {}", traces.front().trace.gpu_name, short_name(traces.front().trace.file)),
       "Time of one training step by class of operation, and after each repair.",
       plot_bars(labels, parts, values)});
  document.sections.push_back(std::move(section));
  return document;
}

}  // namespace precbench
