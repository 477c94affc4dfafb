// Series, their changes, and what they share. See history.h.
#include "tools/history/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "results/record/statistics.h"
#include "tools/analysis/analysis.h"
#include "tools/gate/gate.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

std::size_t nights_of(std::span<const HistoryRow> rows) {
  std::set<std::int64_t> days;
  for (const HistoryRow& row : rows) days.insert(row.day());
  return days.size();
}

/// Splits the rows into series and numbers their boards.
std::vector<HistorySeries> series_of(std::vector<HistoryRow> rows) {
  using Key = std::tuple<std::string, std::string, int, std::string>;
  std::map<Key, std::size_t> known;
  std::vector<HistorySeries> all;
  std::vector<std::map<std::string, std::uint32_t>> boards;
  for (HistoryRow& row : rows) {
    const auto [place, is_new] =
        known.try_emplace(Key(row.id, row.machine, row.method, row.source), all.size());
    if (is_new) all.emplace_back(), boards.emplace_back();
    auto& numbers = boards[place->second];
    const auto number = static_cast<std::uint32_t>(numbers.size());
    HistorySeries& series = all[place->second];
    series.boards.push_back(numbers.try_emplace(row.board, number).first->second);
    series.board_count = numbers.size();
    series.rows.push_back(std::move(row));
  }
  return all;
}

/// Returns the rows at which every board is another one than before.
std::vector<std::size_t> machine_changes(const std::vector<std::uint32_t>& boards) {
  std::map<std::uint32_t, std::size_t> last;
  for (std::size_t i = 0; i < boards.size(); ++i) last[boards[i]] = i;
  std::vector<std::size_t> changes;
  std::size_t until = 0;  // last row of the boards so far
  for (std::size_t i = 0; i + 1 < boards.size(); ++i) {
    until = std::max(until, last[boards[i]]);
    if (until == i) changes.push_back(i + 1);
  }
  return changes;
}

/// Labels the series by model, recipe and the fields in which they differ, then by what else distinguishes them.
void label(std::vector<HistorySeries>& all) {
  const auto field = [](const HistorySeries& series, const std::string& key) {
    return field_text(series.rows.back().fields->value(key, Json()));
  };
  std::vector<std::string> keys;
  std::set<std::string> seen;
  for (const HistorySeries& series : all)
    for (const auto& item : series.rows.back().fields->items())
      if (seen.size() < kMostCaseFields && seen.insert(item.key()).second) keys.push_back(item.key());
  std::erase_if(keys, [&](const std::string& key) {
    return key == "model" || key == "recipe" ||
           std::all_of(all.begin(), all.end(), [&](const HistorySeries& series) {
             return field(series, key) == field(all.front(), key);
           });
  });
  std::map<std::string, std::size_t> counts;
  for (HistorySeries& series : all) {
    series.label = field(series, "model") + " " + field(series, "recipe");
    for (const std::string& key : keys)
      if (const std::string text = field(series, key); !text.empty())
        series.label += fmt::format(" {} {}", key, text);
    ++counts[series.label];
  }
  const auto differs = [&](auto&& value) {
    return std::any_of(all.begin(), all.end(), [&](const HistorySeries& series) {
      return value(series.rows.front()) != value(all.front().rows.front());
    });
  };
  const bool sources = differs([](const HistoryRow& row) { return row.source; });
  const bool machines = differs([](const HistoryRow& row) { return row.machine; });
  const bool methods = differs([](const HistoryRow& row) { return row.method; });
  for (HistorySeries& series : all) {
    const HistoryRow& row = series.rows.front();
    const bool ambiguous = counts[series.label] > 1;
    if (sources) series.label += row.source.empty() ? " precbench" : " " + row.source;
    if (machines) series.label += " " + row.machine;
    if (methods && !sources) series.label += fmt::format(" method {}", row.method);
    if (ambiguous && !sources && !machines && !methods) series.label += " " + row.id;
  }
}

std::vector<double> logarithms(std::span<const HistoryRow> rows, bool cycles) {
  std::vector<double> values;
  values.reserve(rows.size());
  for (const HistoryRow& row : rows)
    values.push_back(std::log(row.step_ms) + (cycles ? std::log(*row.clock_mhz) : 0));
  return values;
}

bool has_clock(const HistoryRow& row) { return row.clock_mhz && *row.clock_mhz > 0; }

/// Returns the shift of a change in clock cycles, among the runs that have a clock.
std::optional<Shift> shift_in_cycles(const HistorySeries& series, const HistoryEvent& event) {
  std::vector<HistoryRow> rows;
  std::vector<std::uint32_t> boards;
  std::size_t at = 0;
  for (std::size_t i = event.begin; i < event.end; ++i) {
    if (!has_clock(series.rows[i])) continue;
    rows.push_back(series.rows[i]), boards.push_back(series.boards[i]);
    if (i < event.at) ++at;
  }
  if (at == 0 || at == rows.size()) return std::nullopt;
  return shift_at(logarithms(rows, true), boards, at);
}

/// Adds the changes of one part of a series.
void add_events(const HistorySeries& series, std::size_t number, std::size_t begin, std::size_t end,
                const HistoryRules& rules, std::vector<HistoryEvent>& events) {
  const std::span rows = std::span(series.rows).subspan(begin, end - begin);
  if (nights_of(rows) < kFewestNights) return;
  const std::span boards = std::span(series.boards).subspan(begin, end - begin);
  const std::vector<double> values = logarithms(rows, false);
  const std::vector<ChangePoint> points = change_points(values, boards, rules.changes);
  if (points.empty()) return;
  std::optional<std::vector<ChangePoint>> in_cycles;
  if (std::all_of(rows.begin(), rows.end(), has_clock))
    in_cycles = change_points(logarithms(rows, true), boards, rules.changes);
  const std::size_t first = events.size();
  for (std::size_t i = 0; i < points.size(); ++i) {
    HistoryEvent event;
    event.series = number;
    event.at = begin + points[i].at;
    event.begin = i == 0 ? begin : begin + points[i - 1].at;
    event.end = i + 1 < points.size() ? begin + points[i + 1].at : end;
    event.shift = points[i].shift;
    event.cycles = shift_in_cycles(series, event);
    event.kind = event.shift.change > 0 ? ChangeKind::slower : ChangeKind::faster;
    const auto near = [&](const ChangePoint& other) {
      const std::size_t apart = std::max(other.at, points[i].at) - std::min(other.at, points[i].at);
      return apart <= rules.changes.fewest_runs && other.shift.change > 0;
    };
    const bool in_program = in_cycles && std::any_of(in_cycles->begin(), in_cycles->end(), near);
    if (event.kind == ChangeKind::slower && event.cycles && !in_program &&
        event.cycles->change < event.shift.change / 2)
      event.kind = ChangeKind::by_clock;
    event.in_window = !rules.since || series.rows[event.at].time >= *rules.since;
    events.push_back(event);
  }
  // A change that a later one took back: the level at the end is nearer to that before it.
  double level = 0;  // after the change, at the end of the part, against that before it
  for (std::size_t i = events.size(); i-- > first;) {
    level += std::log1p(events[i].shift.change);
    events[i].back =
        i + 1 < events.size() && std::abs(level) < std::abs(std::log1p(events[i].shift.change)) / 2;
  }
}

/// Numbers groups of changes of one kind that several cases share within a few nights.
void group_events(const std::vector<HistorySeries>& all, std::vector<HistoryEvent>& events) {
  const auto time = [&](const HistoryEvent& event) { return all[event.series].rows[event.at].time; };
  std::stable_sort(events.begin(), events.end(),
                   [&](const HistoryEvent& a, const HistoryEvent& b) { return time(a) < time(b); });
  const auto day = [&](const HistoryEvent& event) { return all[event.series].rows[event.at].day(); };
  std::vector<bool> grouped(events.size(), false);
  std::size_t groups = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (grouped[i]) continue;
    std::vector<std::size_t> members;
    std::set<std::string> cases;
    for (std::size_t j = i; j < events.size() && day(events[j]) <= day(events[i]) + kSharedNights; ++j)
      if (!grouped[j] && events[j].kind == events[i].kind) {
        members.push_back(j);
        cases.insert(all[events[j].series].rows.front().id);
      }
    if (cases.size() < kSharedCases) members = {i};
    for (const std::size_t member : members) {
      grouped[member] = true;
      events[member].group = groups;
      events[member].shared = members.size() > 1 ? cases.size() : 1;
    }
    ++groups;
  }
}

}  // namespace

const char* name_of(ChangeKind kind) {
  return kind == ChangeKind::slower ? "SLOWER" : kind == ChangeKind::faster ? "FASTER" : "CLOCK";
}

History judge_history(HistoryRows rows, const HistoryRules& rules) {
  History history;
  history.problems = std::move(rows.problems);
  history.repeated = rows.repeated, history.without_time = rows.without_time;
  if (rows.rows.empty()) return history;
  std::sort(rows.rows.begin(), rows.rows.end(), [](const HistoryRow& a, const HistoryRow& b) {
    return std::tie(a.time, a.id, a.board) < std::tie(b.time, b.id, b.board);
  });
  history.first = rows.rows.front().time, history.last = rows.rows.back().time;
  history.nights = nights_of(rows.rows);
  history.series = series_of(std::move(rows.rows));
  label(history.series);
  for (std::size_t number = 0; number < history.series.size(); ++number) {
    HistorySeries& series = history.series[number];
    series.parts = machine_changes(series.boards);
    std::size_t begin = 0;
    for (std::size_t part = 0; part <= series.parts.size(); ++part) {
      const std::size_t end = part < series.parts.size() ? series.parts[part] : series.rows.size();
      add_events(series, number, begin, end, rules, history.events);
      if (end == series.rows.size()) series.nights = nights_of(std::span(series.rows).subspan(begin));
      begin = end;
    }
    series.ended = history.last - series.rows.back().time > kEndedDays * 86400;
  }
  group_events(history.series, history.events);
  return history;
}

int history_status(const History& history, bool fail_on_slower) {
  const auto any_judged = [&](const HistorySeries& series) { return series.judged(); };
  const bool none = std::none_of(history.series.begin(), history.series.end(), any_judged);
  if (!fail_on_slower) return none ? kCheckInconclusive : kCheckPassed;
  const auto stands = [&](const HistoryEvent& event) {
    return event.in_window && !event.back && !history.series[event.series].ended;
  };
  bool slower = false, unsure = none;
  for (const HistoryEvent& event : history.events) {
    slower = slower || (event.kind == ChangeKind::slower && stands(event));
    unsure = unsure || (event.kind == ChangeKind::by_clock && stands(event));
  }
  for (const HistorySeries& series : history.series) unsure = unsure || (!series.ended && !series.judged());
  return slower ? kCheckRegression : unsure ? kCheckInconclusive : kCheckPassed;
}

std::optional<double> median_over(std::span<const HistoryRow> rows,
                                  OptionalNumber (*quantity)(const HistoryRow& row)) {
  std::vector<double> values;
  for (const HistoryRow& row : rows)
    if (const OptionalNumber value = quantity(row)) values.push_back(*value);
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

}  // namespace precbench
