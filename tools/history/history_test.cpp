// Series, events and exit statuses of histories.
#include "tools/history/history.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "tools/gate/gate.h"
#include "tools/history/history_render.h"
#include "tools/history/history_testing.h"

namespace precbench {
namespace {

using namespace history_testing;

History judged(const std::vector<std::vector<HistoryRow>>& cases, const HistoryRules& rules = {}) {
  return judge_history(history_of(cases), rules);
}

}  // namespace

TEST_CASE("history: a slower case fails the nightly run, with its commits", "[history]") {
  const History history = judged({nights_of_case("bf16", 60), nights_of_case("rowwise", 60, 48, 0.03)});
  REQUIRE(history.events.size() == 1);
  const HistoryEvent& event = history.events.front();
  CHECK(event.kind == ChangeKind::slower);
  CHECK(event.at == 48);
  CHECK(event.shared == 1);
  CHECK(history.series[event.series].label == "tiny rowwise");
  const std::string headline = headline_of(history, event);
  CHECK(contains(headline, "SLOWER "));
  CHECK(contains(headline, " between abcdef1 and abcdef1"));
  CHECK(history_status(history, false) == 0);
  CHECK(history_status(history, true) == kCheckRegression);
  CHECK(history_status(judged({nights_of_case("bf16", 60)}), true) == 0);
  CHECK(history_status(judged({nights_of_case("bf16", 60, 48, -0.03)}), true) == 0);  // FASTER
}

TEST_CASE("history: fewer than ten nights are not judged", "[history]") {
  const History few = judged({nights_of_case("bf16", 9)});
  CHECK(history_status(few, false) == kCheckInconclusive);
  CHECK(history_status(few, true) == kCheckInconclusive);
  CHECK(too_few_nights(few) ==
        "Not judged: a change needs 10 nights on one machine, and no case has more than 9.");
  const History enough = judged({nights_of_case("bf16", 10)});
  CHECK(history_status(enough, true) == 0);
  CHECK(too_few_nights(enough).empty());
  // Many runs of a day are one night.
  std::vector<HistoryRow> rows = nights_of_case("bf16", 9);
  for (int i = 0; i < 30; ++i) {
    rows.push_back(night_row("bf16", 8));
    rows.back().time += i + 1;
  }
  CHECK(history_status(judged({rows}), false) == kCheckInconclusive);
  // A young case beside others is undecided, and only a guard asks.
  const History mixed = judged({nights_of_case("bf16", 60), nights_of_case("rowwise", 5)});
  CHECK(history_status(mixed, false) == 0);
}

TEST_CASE("history: a young case is undecided until it ended", "[history]") {
  std::vector<HistoryRow> young;
  for (int night = 50; night < 60; ++night)
    if (night > 54) young.push_back(night_row("rowwise", night));
  CHECK(history_status(judged({nights_of_case("bf16", 60), young}), true) == kCheckInconclusive);
  CHECK(history_status(judged({nights_of_case("bf16", 60), nights_of_case("rowwise", 5)}), true) == 0);
}

TEST_CASE("history: another board is a changed machine, never a regression", "[history]") {
  std::vector<HistoryRow> rows = nights_of_case("bf16", 60, 30, 0.05);
  for (std::size_t i = 30; i < rows.size(); ++i) rows[i].board = "GPU-2";
  const History history = judged({rows});
  CHECK(history.events.empty());
  CHECK(history.series.front().parts == std::vector<std::size_t>{30});
  CHECK(history_status(history, true) == 0);
  // A step on the new board still counts.
  for (std::size_t i = 45; i < rows.size(); ++i) rows[i].step_ms *= 1.05;
  CHECK(history_status(judged({rows}), true) == kCheckRegression);
  // The nights of the last machine count.
  for (std::size_t i = 52; i < rows.size(); ++i) rows[i].board = "GPU-3";
  CHECK(judged({rows}).series.front().nights == 8);
}

TEST_CASE("history: boards that take turns are one series", "[history]") {
  std::vector<HistoryRow> rows = nights_of_case("bf16", 60, 40, 0.03);
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (i % 3 == 0) rows[i].board = "GPU-2", rows[i].step_ms *= 1.02;
  const History history = judged({rows});
  CHECK(history.series.front().parts.empty());
  REQUIRE(history.events.size() == 1);
  CHECK(history.events[0].at == 40);
}

TEST_CASE("history: methods, GPU models and sources are never mixed", "[history]") {
  std::vector<HistoryRow> rows = nights_of_case("bf16", 60, 30, 0.1);
  for (std::size_t i = 30; i < rows.size(); ++i) rows[i].method = 1;
  CHECK(judged({rows}).series.size() == 2);
  CHECK(judged({rows}).events.empty());
  for (std::size_t i = 30; i < rows.size(); ++i)
    rows[i].method = rows[0].method, rows[i].machine = "NVIDIA H100";
  CHECK(judged({rows}).events.empty());
  for (std::size_t i = 30; i < rows.size(); ++i)
    rows[i].machine = rows[0].machine, rows[i].source = "torchtitan";
  const History history = judged({rows});
  CHECK(history.events.empty());
  REQUIRE(history.series.size() == 2);
  CHECK(history.series[0].label == "tiny bf16 precbench");
  CHECK(history.series[1].label == "tiny bf16 torchtitan");
}

TEST_CASE("history: three cases that change within two nights share an event", "[history]") {
  const auto cases = [](int third) {
    return std::vector{nights_of_case("a", 60, 45, 0.03), nights_of_case("bb", 60, 46, 0.04),
                       nights_of_case("ccc", 60, third, 0.05), nights_of_case("dddd", 60)};
  };
  const History shared = judged(cases(47));
  REQUIRE(shared.events.size() == 3);
  for (const HistoryEvent& event : shared.events) {
    CAPTURE(event.series, event.at, name_of(event.kind), event.group);
    CHECK(event.shared == 3);
    CHECK(event.group == shared.events[0].group);
  }
  const std::string text = history_term(shared, {}, {80, true, false});
  CHECK(contains(text, "3 cases share it within 2 nights"));
  CHECK(contains(text, "SLOWER 5."));  // the details are those of the largest
  const History apart = judged(cases(50));
  REQUIRE(apart.events.size() == 3);
  for (const HistoryEvent& event : apart.events) CHECK(event.shared == 1);
}

TEST_CASE("history: a lower clock alone is no regression of the program, and no pass", "[history]") {
  std::vector<HistoryRow> rows = nights_of_case("bf16", 60, 40, 0.04);
  for (std::size_t i = 40; i < rows.size(); ++i) rows[i].clock_mhz = 1755 / 1.04;
  const History history = judged({rows});
  REQUIRE(history.events.size() == 1);
  CHECK(history.events[0].kind == ChangeKind::by_clock);
  CHECK(history_status(history, true) == kCheckInconclusive);
  CHECK(history_status(history, false) == 0);
  CHECK(contains(history_term(history, {}, {80, true, false}), "A lower clock alone explains it"));
  // A program that is slower by as much keeps its verdict.
  for (HistoryRow& row : rows) row.clock_mhz = 1755;
  CHECK(judged({rows}).events.at(0).kind == ChangeKind::slower);
  for (HistoryRow& row : rows) row.clock_mhz.reset();
  const History without = judged({rows});
  CHECK(without.events.at(0).kind == ChangeKind::slower);
  CHECK_FALSE(without.events[0].cycles);
}

TEST_CASE("history: changes that were taken back or lie before the window do not fail", "[history]") {
  std::vector<HistoryRow> rows = nights_of_case("bf16", 60, 30, 0.04);
  for (std::size_t i = 45; i < rows.size(); ++i) rows[i].step_ms /= 1.04;
  const History back = judged({rows});
  REQUIRE(back.events.size() == 2);
  CHECK(back.events[0].back);
  CHECK_FALSE(back.events[1].back);
  CHECK(history_status(back, true) == 0);

  const auto slower = nights_of_case("bf16", 60, 40, 0.04);
  HistoryRules rules;
  rules.since = slower[40].time;
  CHECK(history_status(judged({slower}, rules), true) == kCheckRegression);
  rules.since = slower[41].time;
  CHECK(history_status(judged({slower}, rules), true) == 0);
  CHECK(contains(history_term(judged({slower}, rules), {}, {80, true, false}),
                 "1 change before --since not shown"));

  // A case that is no longer run.
  const History ended = judged({nights_of_case("bf16", 40, 20, 0.04), nights_of_case("rowwise", 100)});
  REQUIRE(ended.events.size() == 1);
  CHECK(history_status(ended, true) == 0);

  // Two steps of which the second is taken back: the first stands.
  std::vector<HistoryRow> twice = nights_of_case("bf16", 80, 20, 0.04);
  for (std::size_t i = 40; i < 60; ++i) twice[i].step_ms *= 1.04;
  const History first = judged({twice});
  REQUIRE(first.events.size() == 3);
  CHECK_FALSE(first.events[0].back);
  CHECK(first.events[1].back);
  CHECK(history_status(first, true) == kCheckRegression);
}

TEST_CASE("history: rows in any order give the same result", "[history]") {
  std::vector<HistoryRow> rows = nights_of_case("bf16", 60, 40, 0.04);
  const std::string sorted = history_term(judged({rows}), {}, {80, true, false});
  std::reverse(rows.begin(), rows.end());
  std::swap(rows[3], rows[50]);
  CHECK(history_term(judged({rows}), {}, {80, true, false}) == sorted);
}

TEST_CASE("history: text of rows cannot act on a terminal, page or shell", "[history][hostile]") {
  std::vector<HistoryRow> rows = nights_of_case("bf16", 60, 40, 0.04);
  const std::string escape = "\x1b[31m<b>`rm -rf x`\n";
  for (HistoryRow& row : rows) {
    row.machine = escape, row.driver = escape, row.commit = escape + std::to_string(row.time),
    row.source = escape;
    row.fields = std::make_shared<const nlohmann::ordered_json>(
        nlohmann::ordered_json{{"model", "'; rm x; '" + escape}, {"recipe", escape}});
  }
  const History history = judged({rows});
  REQUIRE(history.events.size() == 1);
  CHECK(commands_of(history, history.events[0], {}).empty());  // no commit, no command
  for (HistoryRow& row : rows)
    row.source.clear(), row.commit = row.time < rows[40].time ? "abcdef0" : "abcdef1";
  const History ours = judged({rows});
  for (const History* one : {&history, &ours}) {
    const std::string term = history_term(*one, {}, {80, true, false}), page = history_markdown(*one, {});
    for (const std::string* text : {&term, &page}) CHECK(text->find('\x1b') == std::string::npos);
    CHECK(page.substr(0, page.find("```sh")).find("<b>") == std::string::npos);
    const std::string json = history_json(*one, {}).dump(1, ' ', true);
    CHECK(json.find('\x1b') == std::string::npos);
  }
  // Quoted text of a command stays one word.
  const auto commands = commands_of(ours, ours.events.at(0), {});
  REQUIRE(commands.size() == 5);
  CHECK(contains(commands[3], "--model $'"));
}

TEST_CASE("history: lines of a terminal fit 80 columns", "[history]") {
  std::vector<std::vector<HistoryRow>> cases;
  for (const char* recipe : {"bf16", "rowwise", "a_recipe_with_a_rather_long_name_of_its_own"})
    cases.push_back(nights_of_case(recipe, 70, 50, 0.03));
  HistoryView ascii;
  ascii.unicode = false;
  const std::string text = history_term(judged(cases), ascii, {80, true, false});
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    INFO(text.substr(begin, end - begin));
    CHECK(end - begin <= 80);
  }
}

TEST_CASE("history: a sparkline shows a step and flattens noise", "[history]") {
  HistorySeries series;
  series.rows = nights_of_case("bf16", 48);
  const std::string flat = sparkline(series, 24, false);
  CHECK(flat.size() == 24);
  CHECK(std::all_of(flat.begin(), flat.end(), [](char c) { return c >= '2' && c <= '5'; }));
  series.rows = nights_of_case("bf16", 48, 24, 0.1);
  const std::string step = sparkline(series, 24, false);
  CHECK(step.substr(0, 12).find_first_not_of("01") == std::string::npos);
  CHECK(step.substr(12).find_first_not_of("67") == std::string::npos);
}

}  // namespace precbench
