// Final step of precbench study: builds the cards.
#pragma once

#include <string>

namespace precbench {

/// Reads FOLDER/records.jsonl, writes FOLDER/cards.json and prints the cards. Throws
/// InvalidInput if either fails.
void finish_study(const std::string& folder);

}  // namespace precbench
