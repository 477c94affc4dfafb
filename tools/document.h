// What a report consists of, before it becomes text: sections of lines and tables.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/table.h"

namespace precbench {

struct Section {
  std::string title;
  std::vector<std::string> lines;  ///< one thought each; wrapped where the format wraps
  std::optional<Table> table;
  std::vector<std::string> notes;  ///< below the table
};

struct Document {
  std::string title;
  std::vector<Section> sections;
};

std::string render_term(const Document& document);
std::string render_markdown(const Document& document);

}  // namespace precbench
