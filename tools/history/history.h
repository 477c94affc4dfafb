// Judges a history: which cases got slower, when, and between which commits. No input or output.
//
// A series has the runs of one case (id) on one machine (GPU model) by one method version and from one source. A board is
// a GPU (its UUID) or a host. Where all boards of a series change at once, the series is divided: "machine changed", never
// a regression. Within such a part change_points.h finds the changes.
//
// A series with fewer than kFewestNights nights (days, UTC) in its last part is not judged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/history/change_points.h"
#include "tools/history/history_file.h"

namespace precbench {

inline constexpr std::size_t kFewestNights = 10;
/// Nights within which the changes of several cases are one event, and the fewest such cases.
inline constexpr std::int64_t kSharedNights = 2;
inline constexpr std::size_t kSharedCases = 3;
/// Days without a run after which a case is no longer part of the nightly run.
inline constexpr std::int64_t kEndedDays = 30;

/// Kinds of a change. by_clock: the step took longer because of a lower clock alone, as in the gate.
enum class ChangeKind : std::uint8_t { slower, faster, by_clock };
/// Returns "SLOWER", "FASTER", "CLOCK".
const char* name_of(ChangeKind kind);

struct HistoryEvent {
  ChangeKind kind = ChangeKind::slower;
  std::size_t series = 0;
  std::size_t begin = 0, at = 0, end = 0;  ///< runs before the change [begin, at), and after it [at, end)
  Shift shift{};                           ///< of the step time
  std::optional<Shift> cycles{};           ///< of the step in clock cycles; null without clocks
  bool back = false;       ///< a later change of the series took the step time back to that before this one
  std::size_t shared = 1;  ///< cases with a change of this kind within kSharedNights nights
  std::size_t group = 0;   ///< events of one group are shared; in order of time
  bool in_window = true;   ///< the first run after it is not older than HistoryRules::since
};

struct HistorySeries {
  std::vector<HistoryRow> rows;       ///< by time
  std::vector<std::uint32_t> boards;  ///< of each row
  std::string label;                  ///< fields that distinguish it: "llama3.2-1b rowwise seq 8192"
  std::vector<std::size_t> parts;     ///< first rows of the parts behind a changed machine
  std::size_t nights = 0;             ///< of the last part
  std::size_t board_count = 0;
  bool ended = false;  ///< not run for kEndedDays before the newest run of all

  bool judged() const { return nights >= kFewestNights; }
};

struct HistoryRules {
  ChangeRules changes{};
  std::optional<std::int64_t> since{};  ///< time; changes before it are not shown and do not fail
};

struct History {
  std::vector<HistorySeries> series;  ///< in order of first appearance
  std::vector<HistoryEvent> events;   ///< by time
  std::vector<std::string> problems;  ///< of the files
  std::size_t repeated = 0, without_time = 0;
  std::size_t nights = 0;            ///< of all series together
  std::int64_t first = 0, last = 0;  ///< times of the oldest and the newest run
};

History judge_history(HistoryRows rows, const HistoryRules& rules);

/// Exit statuses of a history, those of the gate: 0; 1 with `fail_on_slower`, if a case of the nightly run got slower in
/// the window and did not come back; 3 if no case has enough nights, and with `fail_on_slower` also if a case of the
/// nightly run has not, or a lower clock alone made one slower.
int history_status(const History& history, bool fail_on_slower);

/// Median of a quantity over the runs [begin, end); null if no run has it.
std::optional<double> median_over(std::span<const HistoryRow> rows,
                                  OptionalNumber (*quantity)(const HistoryRow& row));

}  // namespace precbench
