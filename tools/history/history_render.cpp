// Text, Markdown and JSON of a history. See history_render.h.
#include "tools/history/history_render.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>
#include <span>

#include "kernels/base/plural.h"
#include "results/record/printable.h"
#include "results/record/provenance.h"
#include "results/record/shell.h"
#include "results/record/short_text.h"
#include "results/text/lines.h"
#include "tools/analysis/columns.h"
#include "tools/text/escape.h"
#include "tools/text/table.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kTrendWidth = 24, kShortCommit = 7, kMostLabel = 60, kMostVersion = 24;
/// Narrowest range of a sparkline, as a fraction of the step time.
constexpr double kTrendRange = 0.04;

/// A part of the text: lines, a table and commands.
struct Part {
  std::string title;
  std::vector<std::string> lines{};
  std::optional<Table> table{};
  std::string before_commands{};
  std::vector<std::string> commands{};
};

std::string day_text(std::int64_t time) { return utc_text(time).substr(0, 10); }

std::string percent_text(double change) { return fmt::format("{:+.1f}%", 100 * change); }

std::string label_of(const HistorySeries& series) { return short_printable(series.label, kMostLabel); }

bool is_commit(const std::string& text) {
  return text.size() >= 7 && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

/// Returns "3fa2c1a", or the version of another program; the date for a run of an unknown commit.
std::string commit_text(const HistoryRow& row) {
  if (row.commit.empty()) return day_text(row.time);
  const std::string text =
      is_commit(row.commit) ? row.commit.substr(0, kShortCommit) : short_printable(row.commit, kMostVersion);
  return text + (row.dirty ? "*" : "");
}

Tone verdict_tone(const std::string& cell) {
  if (cell.starts_with("SLOWER")) return Tone::bad;
  return cell.starts_with("FASTER") ? Tone::good : Tone::plain;
}

std::span<const HistoryRow> side_of(const History& history, const HistoryEvent& event, bool after) {
  const std::span rows = history.series[event.series].rows;
  return after ? rows.subspan(event.at, event.end - event.at)
               : rows.subspan(event.begin, event.at - event.begin);
}

/// A line of the table of both sides.
struct Quantity {
  const char* title;
  OptionalNumber (*value)(const HistoryRow& row);
  std::string (*text)(double value);
};

std::string ms_text(double value) { return fmt::format("{:.{}f}", value, value < 100 ? 2 : 1); }
std::string whole_text(double value) { return fmt::format("{:.0f}", value); }
std::string loss_text(double value) { return fmt::format("{:.4f}", value); }

template <std::size_t kOp>
OptionalNumber op_of(const HistoryRow& row) {
  return kOp < row.ops.size() ? OptionalNumber(row.ops[kOp]) : OptionalNumber();
}

template <std::size_t... kOps>
void add_ops(std::vector<Quantity>& quantities, std::index_sequence<kOps...>) {
  (quantities.push_back({kHistoryOps[kOps], op_of<kOps>, ms_text}), ...);
}

/// Returns the quantities of both sides, in the order shown.
const std::vector<Quantity>& quantities() {
  static const std::vector<Quantity> all = [] {
    std::vector<Quantity> made = {
        {"step (ms)", [](const HistoryRow& row) { return OptionalNumber(row.step_ms); }, ms_text},
        {"with the host (ms)", [](const HistoryRow& row) { return row.wall_ms; }, ms_text}};
    add_ops(made, std::make_index_sequence<std::size(kHistoryOps)>());
    made.push_back({"SM clock (MHz)", [](const HistoryRow& row) { return row.clock_mhz; }, whole_text});
    made.push_back({"power (W)", [](const HistoryRow& row) { return row.power_w; }, whole_text});
    made.push_back({"peak memory", [](const HistoryRow& row) { return row.peak_bytes; }, bytes_text});
    made.push_back({"loss (nats)", [](const HistoryRow& row) { return row.loss; }, loss_text});
    return made;
  }();
  return all;
}

Table sides_table(const History& history, const HistoryEvent& event) {
  Table table;
  table.columns = {name_column("median"), number_column("before"), number_column("after"),
                   number_column("change")};
  table.columns.front().left = true;
  for (const Quantity& quantity : quantities()) {
    const auto before = median_over(side_of(history, event, false), quantity.value);
    const auto after = median_over(side_of(history, event, true), quantity.value);
    if (!before && !after) continue;
    const auto text = [&](const std::optional<double>& value) { return value ? quantity.text(*value) : "-"; };
    const bool both = before && after && *before > 0 && std::isfinite(*after / *before);
    table.rows.push_back(
        {quantity.title, text(before), text(after), both ? percent_text(*after / *before - 1) : "-"});
  }
  return table;
}

/// Returns what else differs between the last run before a change and the first after it: "driver 570.86 -> 575.51".
std::vector<std::string> changed_software(const History& history, const HistoryEvent& event) {
  const HistorySeries& series = history.series[event.series];
  const HistoryRow &before = series.rows[event.at - 1], &after = series.rows[event.at];
  const auto version = [](const std::string& text) {
    return text.empty() ? "unknown" : short_printable(text, 40);
  };
  std::vector<std::string> changed;
  for (const auto& [name, member] : {std::pair("driver", &HistoryRow::driver),
                                     {"CUDA", &HistoryRow::cuda},
                                     {"cuBLASLt", &HistoryRow::cublaslt},
                                     {"cuDNN", &HistoryRow::cudnn},
                                     {"NCCL", &HistoryRow::nccl}})
    if (before.*member != after.*member)
      changed.push_back(fmt::format("{} {} -> {}", name, version(before.*member), version(after.*member)));
  return changed;
}

/// Returns the sentence on the share of the clock in a change; empty without clocks.
std::string clock_sentence(const HistoryEvent& event) {
  if (!event.cycles) return "";
  const std::string cycles =
      fmt::format("{} [{:.1f}, {:.1f}] in clock cycles", percent_text(event.cycles->change),
                  100 * event.cycles->low, 100 * event.cycles->high);
  const double time = std::log1p(event.shift.change);
  const double share = time == 0 ? 0 : 1 - std::log1p(event.cycles->change) / time;
  if (event.kind == ChangeKind::by_clock) return "A lower clock alone explains it: " + cycles + ".";
  if (share < 0.05) return "The clock explains none of it: " + cycles + ".";
  return fmt::format("The clock explains {:.0f}% of it: {}.", 100 * std::min(share, 1.0), cycles);
}

std::vector<std::string> lines_of(const History& history, const HistoryEvent& event) {
  const HistorySeries& series = history.series[event.series];
  const auto before = side_of(history, event, false), after = side_of(history, event, true);
  std::vector<std::string> lines = {fmt::format("{}, {}: {} until {}, {} from {}", label_of(series),
                                                short_printable(before.back().machine, 40),
                                                plural(before.size(), "run"), day_text(before.back().time),
                                                plural(after.size(), "run"), day_text(after.front().time))};
  if (!before.back().commit.empty() && before.back().commit == after.front().commit)
    lines.emplace_back(
        "The commit did not change: look at software, clocks and other processes of the machine.");
  const std::vector<std::string> changed = changed_software(history, event);
  if (!changed.empty()) {
    std::string line = "Changed at the same time: " + changed.front();
    for (std::size_t i = 1; i < changed.size(); ++i) line += ", " + changed[i];
    lines.push_back(line + ".");
  }
  if (const std::string clock = clock_sentence(event); !clock.empty()) lines.push_back(clock);
  const auto doubted =
      std::count_if(after.begin(), after.end(), [](const HistoryRow& row) { return row.doubted; });
  if (doubted > 0)
    lines.push_back(
        fmt::format("{} of {} after it have noisy step times.", doubted, plural(after.size(), "run")));
  if (event.back) lines.emplace_back("A later change took it back.");
  return lines;
}

/// Returns the case's flags after "precbench run".
std::string flags_of(const HistoryRow& row, const RerunCommand& rerun) {
  static constexpr std::string_view kRun = "precbench run";
  std::string command = rerun ? rerun(*row.fields) : rerun_with_all_flags(*row.fields);
  return command.starts_with(kRun) ? command.substr(kRun.size()) : " " + command;
}

/// Returns the state of a series in a few words.
std::string verdict_of(const History& history, std::size_t number) {
  const HistorySeries& series = history.series[number];
  const HistoryEvent* shown = nullptr;
  for (const HistoryEvent& event : history.events)
    if (event.series == number && event.in_window && !event.back) shown = &event;
  if (shown) return fmt::format("{} {:.1f}%", name_of(shown->kind), 100 * std::abs(shown->shift.change));
  if (series.ended) return "no longer run";
  if (!series.judged()) return fmt::format("{} of {} nights", series.nights, kFewestNights);
  return "no change";
}

Part overview_of(const History& history, const HistoryView& view) {
  const std::size_t judged = static_cast<std::size_t>(std::count_if(
      history.series.begin(), history.series.end(), [](const HistorySeries& one) { return one.judged(); }));
  Part part{fmt::format("{} over {}, {} to {}", plural(history.series.size(), "case"),
                        plural(history.nights, "night"), day_text(history.first), day_text(history.last))};
  if (judged > 0 && judged < history.series.size())
    part.lines.push_back(fmt::format("{} of {} have the {} nights that a judgement needs.", judged,
                                     plural(history.series.size(), "case"), kFewestNights));
  if (const std::string few = too_few_nights(history); !few.empty()) part.lines.push_back(few);
  Table table;
  table.columns = {text_column("case", kKeyRank), number_column("runs"), number_column("last (ms)"),
                   name_column("verdict"), name_column("trend")};
  table.columns[3].tone = verdict_tone;
  for (std::size_t number = 0; number < history.series.size(); ++number) {
    const HistorySeries& series = history.series[number];
    table.rows.push_back({label_of(series), std::to_string(series.rows.size()),
                          ms_text(series.rows.back().step_ms), verdict_of(history, number),
                          sparkline(series, kTrendWidth, view.unicode)});
  }
  part.table = std::move(table);
  return part;
}

/// Returns a part for each group of changes in the window: all headlines, and the details of the largest.
std::vector<Part> event_parts(const History& history, const HistoryView& view) {
  std::vector<Part> parts;
  std::set<std::size_t> done;
  for (const HistoryEvent& first : history.events) {
    if (!first.in_window || !done.insert(first.group).second) continue;
    std::vector<const HistoryEvent*> members;
    for (const HistoryEvent& event : history.events)
      if (event.group == first.group && event.in_window) members.push_back(&event);
    const HistoryEvent* largest = members.front();
    for (const HistoryEvent* event : members)
      if (std::abs(event->shift.change) > std::abs(largest->shift.change)) largest = event;
    Part part{headline_of(history, *largest)};
    part.lines = lines_of(history, *largest);
    if (members.size() > 1) {
      part.lines.push_back(fmt::format("{} share it within {} nights, so one cause is likely:",
                                       plural(first.shared, "case"), kSharedNights));
      for (const HistoryEvent* event : members)
        if (event != largest)
          part.lines.push_back(label_of(history.series[event->series]) + ": " + headline_of(history, *event));
    }
    part.table = sides_table(history, *largest);
    part.commands = commands_of(history, *largest, view.rerun);
    if (!part.commands.empty())
      part.before_commands =
          "To list the commits, to find the one, and to measure both sides again (A B B A):";
    parts.push_back(std::move(part));
  }
  return parts;
}

/// Returns what a reader must know beside the changes.
Part notes_of(const History& history, const HistoryView& view) {
  Part part{"Notes"};
  if (!view.appended.empty()) part.lines.push_back(view.appended);
  for (const HistorySeries& series : history.series)
    for (const std::size_t at : series.parts)
      part.lines.push_back(fmt::format(
          "Machine changed on {}: {} ran on {} before, on {} since. Runs of both are not compared.",
          day_text(series.rows[at].time), label_of(series), short_printable(series.rows[at - 1].board, 40),
          short_printable(series.rows[at].board, 40)));
  const auto old = std::count_if(history.events.begin(), history.events.end(),
                                 [](const HistoryEvent& event) { return !event.in_window; });
  if (old > 0) part.lines.push_back(fmt::format("{} before --since not shown.", plural(old, "change")));
  if (history.without_time > 0)
    part.lines.push_back(fmt::format("{} without a speed left out (failed, emulated or of a study).",
                                     plural(history.without_time, "record")));
  if (history.repeated > 0)
    part.lines.push_back(
        fmt::format("{} left out that other rows say, too.", plural(history.repeated, "row")));
  for (const std::string& problem : history.problems) part.lines.push_back(problem);
  return part;
}

std::vector<Part> parts_of(const History& history, const HistoryView& view) {
  std::vector<Part> parts = {overview_of(history, view)};
  for (Part& part : event_parts(history, view)) parts.push_back(std::move(part));
  Part notes = notes_of(history, view);
  if (!notes.lines.empty()) parts.push_back(std::move(notes));
  return parts;
}

Json number_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json shift_json(const std::optional<Shift>& shift) {
  if (!shift) return {};
  return {{"change", shift->change}, {"low", shift->low}, {"high", shift->high}};
}

Json run_json(const HistoryRow& row) {
  return {{"created", row.created}, {"commit", row.commit}, {"board", row.board}};
}

Json event_json(const History& history, const HistoryEvent& event, const HistoryView& view) {
  const HistorySeries& series = history.series[event.series];
  Json medians = Json::array();
  for (const Quantity& quantity : quantities())
    medians.push_back({{"name", quantity.title},
                       {"before", number_json(median_over(side_of(history, event, false), quantity.value))},
                       {"after", number_json(median_over(side_of(history, event, true), quantity.value))}});
  return {{"kind", name_of(event.kind)},
          {"id", series.rows.front().id},
          {"label", series.label},
          {"change", shift_json(event.shift)},
          {"cycles", shift_json(event.cycles)},
          {"last_before", run_json(series.rows[event.at - 1])},
          {"first_after", run_json(series.rows[event.at])},
          {"runs_before", event.at - event.begin},
          {"runs_after", event.end - event.at},
          {"back", event.back},
          {"shared_by", event.shared},
          {"in_window", event.in_window},
          {"changed", changed_software(history, event)},
          {"medians", medians},
          {"commands", commands_of(history, event, view.rerun)}};
}

}  // namespace

std::string sparkline(const HistorySeries& series, std::size_t width, bool unicode) {
  const std::size_t runs = series.rows.size(), buckets = std::min(width, runs);
  std::vector<double> levels;
  for (std::size_t i = 0; i < buckets; ++i) {
    const std::size_t begin = i * runs / buckets, end = (i + 1) * runs / buckets;
    levels.push_back(
        std::log(*median_over(std::span(series.rows).subspan(begin, end - begin),
                              [](const HistoryRow& row) { return OptionalNumber(row.step_ms); })));
  }
  const auto [low, high] = std::minmax_element(levels.begin(), levels.end());
  const double range = std::max(*high - *low, kTrendRange), start = (*low + *high - range) / 2;
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::string line;
  for (const double level : levels) {
    const auto step = static_cast<std::size_t>(std::clamp((level - start) / range * 8, 0.0, 7.0));
    line += unicode ? kBlocks[step] : std::to_string(step);
  }
  return line;
}

std::string headline_of(const History& history, const HistoryEvent& event) {
  const HistorySeries& series = history.series[event.series];
  const HistoryRow &before = series.rows[event.at - 1], &after = series.rows[event.at];
  const bool faster = event.kind == ChangeKind::faster;
  double low = 100 * event.shift.low, high = 100 * event.shift.high;
  if (faster) std::swap(low, high), low = -low, high = -high;
  const std::string size = fmt::format("{} {:.1f}% [{:.1f}, {:.1f}]", name_of(event.kind),
                                       100 * std::abs(event.shift.change), low, high);
  if (!before.commit.empty() && before.commit == after.commit)
    return fmt::format("{} at {}, from {}", size, commit_text(after), day_text(after.time));
  return fmt::format("{} between {} and {}", size, commit_text(before), commit_text(after));
}

std::vector<std::string> commands_of(const History& history, const HistoryEvent& event,
                                     const RerunCommand& rerun) {
  const HistorySeries& series = history.series[event.series];
  const HistoryRow &before = series.rows[event.at - 1], &after = series.rows[event.at];
  if (!is_commit(before.commit) || !is_commit(after.commit) || before.commit == after.commit) return {};
  std::vector<std::string> commands = {fmt::format("git log --oneline {}..{}", before.commit, after.commit)};
  if (!series.rows.back().source.empty()) {  // the repository of another program, whose runs we cannot start
    commands.push_back(fmt::format("git bisect start {} {}", after.commit, before.commit));
    return commands;
  }
  const auto median = [&](bool late) {
    return *median_over(side_of(history, event, late),
                        [](const HistoryRow& row) { return OptionalNumber(row.step_ms); });
  };
  const std::string flags = flags_of(series.rows.back(), rerun);
  commands.emplace_back("mkdir -p out && cp tools/history/bisect_step.sh out/");
  commands.push_back(
      fmt::format("git bisect start {} {}{}", after.commit, before.commit,
                  event.kind == ChangeKind::faster ? " # good is slow here, bad is fast" : ""));
  commands.push_back(fmt::format("git bisect run out/bisect_step.sh {} {}{}",
                                 event.kind == ChangeKind::faster ? "below" : "above",
                                 ms_text(std::sqrt(median(false) * median(true))), flags));
  commands.push_back(fmt::format("tools/history/rerun_both.sh {} {}{}", before.commit, after.commit, flags));
  return commands;
}

std::string too_few_nights(const History& history) {
  std::size_t most = 0;
  for (const HistorySeries& series : history.series) most = std::max(most, series.nights);
  if (most >= kFewestNights) return "";
  return fmt::format("Not judged: a change needs {} nights on one machine, and no case has more than {}.",
                     kFewestNights, most);
}

std::string history_term(const History& history, const HistoryView& view, const Screen& screen) {
  std::string text;
  for (const Part& part : parts_of(history, view)) {
    if (!text.empty()) text += "\n";
    text += paragraph(part.title, screen);
    for (const std::string& line : part.lines) text += indented_line(line, screen);
    if (part.table) text += "\n" + render_term(*part.table, screen);
    if (!part.commands.empty()) text += "\n" + paragraph(part.before_commands, screen);
    for (const std::string& command : part.commands) text += command_lines(printable(command), screen);
  }
  return text;
}

std::string history_markdown(const History& history, const HistoryView& view) {
  std::string text;
  for (const Part& part : parts_of(history, view)) {
    text += fmt::format("{}## {}\n\n", text.empty() ? "" : "\n", markdown_text(part.title));
    for (const std::string& line : part.lines) text += "- " + markdown_text(line) + "\n";
    if (part.table) text += (part.lines.empty() ? "" : "\n") + render_markdown(*part.table);
    if (part.commands.empty()) continue;
    text += "\n" + markdown_text(part.before_commands) + "\n\n```sh\n";
    for (const std::string& command : part.commands) text += printable(command) + "\n";
    text += "```\n";
  }
  return text;
}

Json history_json(const History& history, const HistoryView& view) {
  Json series = Json::array(), events = Json::array();
  for (std::size_t number = 0; number < history.series.size(); ++number) {
    const HistorySeries& one = history.series[number];
    Json parts = Json::array();
    for (const std::size_t at : one.parts)
      parts.push_back({{"before", run_json(one.rows[at - 1])}, {"after", run_json(one.rows[at])}});
    const HistoryRow& last = one.rows.back();
    series.push_back({{"id", last.id},
                      {"source", last.source.empty() ? Json() : Json(last.source)},
                      {"method", last.method},
                      {"machine", last.machine},
                      {"case", *last.fields},
                      {"label", one.label},
                      {"runs", one.rows.size()},
                      {"boards", one.board_count},
                      {"nights", one.nights},
                      {"judged", one.judged()},
                      {"ended", one.ended},
                      {"first", one.rows.front().created},
                      {"last", last.created},
                      {"last_ms", last.step_ms},
                      {"verdict", verdict_of(history, number)},
                      {"machine_changes", parts}});
  }
  for (const HistoryEvent& event : history.events) events.push_back(event_json(history, event, view));
  const std::string few = too_few_nights(history);
  return {{"exit", history_status(history, view.fails)},
          {"nights", history.nights},
          {"first", utc_text(history.first)},
          {"last", utc_text(history.last)},
          {"reason", few.empty() ? Json() : Json(few)},
          {"series", series},
          {"events", events},
          {"without_speed", history.without_time},
          {"repeated", history.repeated},
          {"problems", history.problems}};
}

}  // namespace precbench
