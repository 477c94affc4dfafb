// What precbench study ends with: the cards of its rows.
#pragma once

#include <string>

namespace precbench {

/// Reads FOLDER/records.jsonl, writes FOLDER/cards.json and prints the cards. Throws InvalidInput where either cannot be
/// done.
void finish_study(const std::string& folder);

}  // namespace precbench
