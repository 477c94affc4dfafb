// Renders a history: for terminals, as Markdown, and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "results/text/screen.h"
#include "tools/gate/gate_render.h"
#include "tools/history/history.h"

namespace precbench {

struct HistoryView {
  RerunCommand rerun{};    ///< command that runs a case again
  bool unicode = true;     ///< sparklines of block elements; otherwise of digits
  bool fails = false;      ///< --fail-on slower: the JSON has this exit status
  std::string appended{};  ///< line on what was appended to a history file; empty: nothing asked
};

/// Returns `width` characters that show the runs from the oldest to the newest: medians of equal numbers of runs, on a
/// scale of at least 4% of the step time, so that noise looks like noise. Digits run from 0, fast, to 7.
std::string sparkline(const HistorySeries& series, std::size_t width, bool unicode);

/// Returns "SLOWER 2.1% [1.6, 2.6] between 3fa2c1 and 9be01d".
std::string headline_of(const History& history, const HistoryEvent& event);

/// Returns the commands that look for the commit of a change and rerun both sides of it; none without commits.
std::vector<std::string> commands_of(const History& history, const HistoryEvent& event,
                                     const RerunCommand& rerun);

std::string history_term(const History& history, const HistoryView& view, const Screen& screen);
std::string history_markdown(const History& history, const HistoryView& view);

/// Returns {exit, nights, first, last, series: [...], events: [...], problems}. Unknown values are null.
nlohmann::ordered_json history_json(const History& history, const HistoryView& view);

/// Returns the sentence on a history of which no case has enough nights; empty if one has.
std::string too_few_nights(const History& history);

}  // namespace precbench
