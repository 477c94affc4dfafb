// Renders one result in five formats. See gate_render.h.
#include "tools/gate/gate_render.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels/base/plural.h"
#include "results/record/printable.h"
#include "results/record/shell.h"
#include "results/text/lines.h"
#include "tools/analysis/analysis.h"
#include "tools/analysis/columns.h"
#include "tools/text/document.h"
#include "tools/text/escape.h"
#include "tools/text/text.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

bool passed(const CaseResult& result) { return exit_status(result.verdict()) == kCheckPassed; }

std::string value_text(const MetricResult& metric, const std::optional<double>& value) {
  if (!value) return "none";
  if (metric.unit == "bytes") return bytes_text(*value);
  if (metric.unit == "nats") return fmt::format("{:.5f}", *value);
  if (metric.unit == "dB") return fmt::format("{:.2f}", *value);
  return fmt::format("{:.0f}", *value);
}

/// Returns "SLOWER -4.1%". Converts the change in step time to one in tokens/s.
std::string cell(const MetricResult& metric) {
  if (!metric.change) return name_of(metric.verdict);
  const bool speed = metric.unit == "tokens/s";
  const double change = speed ? 1 / (1 + *metric.change) - 1 : *metric.change;
  return fmt::format("{} {:+.{}f}%", name_of(metric.verdict), 100 * change, metric.unit == "nats" ? 3 : 1);
}

/// Returns "peak memory BIGGER, 10.00 GiB -> 10.25 GiB: +2.50%, 2.00% are allowed".
std::string metric_line(const MetricResult& metric) {
  std::string line = fmt::format("{} {}", metric.metric, name_of(metric.verdict));
  if (metric.baseline && metric.current)
    line += fmt::format(", {} -> {}{}", value_text(metric, metric.baseline),
                        value_text(metric, metric.current), metric.unit == "bytes" ? "" : " " + metric.unit);
  return metric.reason.empty() ? line : line + ": " + metric.reason;
}

std::string joined(const std::vector<std::string>& lines, const char* by) {
  return fmt::format("{}", fmt::join(lines, by));
}

Document document_of(const GateResult& result, const std::string& baseline) {
  Document document;
  document.title = "precbench check: " + gate_summary(result);
  Section cases{"Against " + baseline, {}, Table{}, {}};
  std::vector<std::string> metrics;
  for (const CaseResult& one : result.cases)
    for (const MetricResult& metric : one.metrics)
      if (!metric.unit.empty() && !std::count(metrics.begin(), metrics.end(), metric.metric))
        metrics.push_back(metric.metric);
  cases.table->columns = {text_column("case", kKeyRank), name_column("verdict")};
  int rank = kKeyRank - 1;
  for (const std::string& name : metrics) cases.table->columns.push_back(text_column(name, rank--));
  for (const CaseResult& one : result.cases) {
    std::vector<std::string> row = {one.label, name_of(one.verdict())};
    for (const std::string& name : metrics) {
      const auto found = std::find_if(one.metrics.begin(), one.metrics.end(),
                                      [&](const MetricResult& metric) { return metric.metric == name; });
      const bool left_out = found == one.metrics.end() && !one.metrics.front().unit.empty();
      row.push_back(found != one.metrics.end() ? cell(*found) : left_out ? "not judged" : "");
    }
    cases.table->rows.push_back(row);
  }
  document.sections.push_back(cases);
  Section failing{"What did not pass", {}, {}, {}};
  for (const CaseResult& one : result.cases) {
    if (passed(one)) continue;
    for (const std::string& line : gate_complaints(one)) failing.lines.push_back(one.label + ": " + line);
  }
  if (!failing.lines.empty()) document.sections.push_back(failing);
  if (!result.notes.empty()) document.sections.push_back({"Notes", result.notes, {}, {}});
  return document;
}

std::vector<std::string> commands_of(const GateResult& result, const RerunCommand& rerun) {
  std::vector<std::string> commands;
  for (const CaseResult& one : result.cases)
    if (!passed(one)) commands.push_back(printable(rerun(one.fields)));
  return commands;
}

/// Returns the `time` attribute of JUnit; empty if unknown.
std::string time_attribute(const std::optional<double>& seconds) {
  return seconds ? fmt::format(" time=\"{:.3f}\"", *seconds) : "";
}

}  // namespace

std::vector<std::string> gate_complaints(const CaseResult& result) {
  std::vector<std::string> lines;
  for (const MetricResult& metric : result.metrics)
    if (exit_status(metric.verdict) != kCheckPassed) lines.push_back(metric_line(metric));
  return lines;
}

std::string rerun_with_all_flags(const Json& fields) {
  const auto of_a_flag = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  std::string command = "precbench run";
  for (const auto& item : fields.items()) {
    const std::string value = field_text(item.value());
    if (value.empty() || !std::all_of(item.key().begin(), item.key().end(), of_a_flag)) continue;
    std::string flag = item.key();
    std::replace(flag.begin(), flag.end(), '_', '-');
    command += " --" + flag + " " + shell_quoted(value);
  }
  return command;
}

std::string gate_summary(const GateResult& result) {
  std::map<GateVerdict, int> counts;
  for (const CaseResult& one : result.cases) ++counts[one.verdict()];
  std::vector<std::string> parts;
  for (const auto& [verdict, count] : counts) parts.push_back(fmt::format("{} {}", count, name_of(verdict)));
  return fmt::format("{}: {}", plural(result.cases.size(), "case"),
                     parts.empty() ? "none" : joined(parts, ", "));
}

std::string gate_term(const GateResult& result, const std::string& baseline, const RerunCommand& rerun,
                      const Screen& screen) {
  std::string text = render_term(document_of(result, baseline), screen);
  const std::vector<std::string> commands = commands_of(result, rerun);
  if (!commands.empty()) text += "\nTo run them again\n";
  for (const std::string& command : commands) text += command_lines(command, screen);
  return text;
}

std::string gate_markdown(const GateResult& result, const std::string& baseline, const RerunCommand& rerun) {
  std::string text = render_markdown(document_of(result, baseline));
  const std::vector<std::string> commands = commands_of(result, rerun);
  return commands.empty() ? text : text + "\n```sh\n" + joined(commands, "\n") + "\n```\n";
}

std::string gate_junit(const GateResult& result, const RerunCommand& rerun) {
  const auto count = [&](int status) {
    return std::count_if(result.cases.begin(), result.cases.end(),
                         [&](const CaseResult& one) { return result.exit_status(one) == status; });
  };
  const auto skipped = std::count_if(result.cases.begin(), result.cases.end(), [&](const CaseResult& one) {
    return !passed(one) && result.exit_status(one) == kCheckPassed;
  });
  std::optional<double> seconds;
  for (const CaseResult& one : result.cases)
    if (one.seconds) seconds = seconds.value_or(0) + *one.seconds;
  std::string xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  xml += fmt::format("<testsuite name=\"precbench check\" tests=\"{}\" failures=\"{}\" errors=\"{}\"{}>\n",
                     result.cases.size(), count(kCheckRegression), count(kCheckInconclusive),
                     (skipped > 0 ? fmt::format(" skipped=\"{}\"", skipped) : "") + time_attribute(seconds));
  for (const CaseResult& one : result.cases) {
    std::string output;
    for (const MetricResult& metric : one.metrics) output += xml_text(metric_line(metric)) + "\n";
    const std::string out = fmt::format("    <system-out>{}</system-out>\n  </testcase>\n", output);
    xml += fmt::format("  <testcase classname=\"precbench\" name=\"{}\"{}>\n", xml_text(one.label),
                       time_attribute(one.seconds));
    if (passed(one)) {
      xml += out;
      continue;
    }
    const int status = result.exit_status(one);
    const char* element = status == kCheckRegression ? "failure"
                          : status == kCheckPassed   ? "skipped"
                                                     : "error";
    xml += fmt::format("    <{0} type=\"{1}\" message=\"{2}\">{3}</{0}>\n", element, name_of(one.verdict()),
                       xml_text(joined(gate_complaints(one), "; ")), xml_text(rerun(one.fields))) +
           out;
  }
  return xml + "</testsuite>\n";
}

std::string gate_annotations(const GateResult& result, const RerunCommand& rerun) {
  std::string text;
  for (const CaseResult& one : result.cases) {
    if (passed(one)) continue;
    std::vector<std::string> lines = gate_complaints(one);
    lines.push_back("again: " + rerun(one.fields));
    text +=
        fmt::format("::{} title={}::{}\n", result.exit_status(one) == kCheckRegression ? "error" : "warning",
                    annotation_property(fmt::format("{}: {}", name_of(one.verdict()), one.label)),
                    annotation_message(joined(lines, "\n")));
  }
  // The older form of workflow commands is active anywhere in a line.
  const std::string_view old_form = "##[";
  for (std::size_t at = 0; (at = text.find(old_form, at)) != std::string::npos;) text.replace(at, 3, "## [");
  return text;
}

Json gate_json(const GateResult& result, const std::string& baseline, const RerunCommand& rerun) {
  const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  Json cases = Json::array();
  for (const CaseResult& one : result.cases) {
    Json metrics = Json::array();
    for (const MetricResult& metric : one.metrics)
      metrics.push_back({{"metric", metric.metric},
                         {"unit", metric.unit},
                         {"verdict", name_of(metric.verdict)},
                         {"baseline", number(metric.baseline)},
                         {"current", number(metric.current)},
                         {"change", number(metric.change)},
                         {"tolerance", number(metric.tolerance)},
                         {"reason", metric.reason}});
    cases.push_back({{"id", one.id},
                     {"case", one.fields},
                     {"label", one.label},
                     {"verdict", name_of(one.verdict())},
                     {"baseline_records", one.records},
                     {"seconds", number(one.seconds)},
                     {"rerun", rerun(one.fields)},
                     {"metrics", metrics}});
  }
  return {{"baseline", baseline},
          {"exit", result.exit_status()},
          {"summary", gate_summary(result)},
          {"cases", cases},
          {"notes", result.notes}};
}

}  // namespace precbench
