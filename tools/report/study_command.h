// Final step of precbench study: builds the cards.
#pragma once

#include <optional>
#include <string>

#include "results/record/record_file.h"

namespace precbench {

/// Returns where the time of the cases' processes went, such as "steps 70%, fidelity probe 21%, start 9%", without what
/// is below one percent; null if no record says.
std::optional<std::string> shares_of_time(const RecordSet& set);

/// Reads FOLDER/records.jsonl, writes FOLDER/cards.json and prints the cards. Throws
/// InvalidInput if either fails.
void finish_study(const std::string& folder);

}  // namespace precbench
