// Reads sweep files with CLI11's TOML reader.
#include "bench/config_file.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "kernels/errors.h"

namespace precbench {
namespace {

const std::vector<std::string> kOptions = {"out", "timeout", "interleave"};

[[noreturn]] void unknown_key(const std::string& path, const std::string& key) {
  std::vector<std::string> valid = kOptions;
  for (const Field& field : case_fields()) valid.push_back(field.name);
  const std::string near = nearest(key, valid);
  throw InvalidInput(fmt::format(
      "{}: unknown key {}{}", path, key,
      near.empty() ? "; precbench sweep --help lists the fields" : fmt::format("; did you mean {}?", near)));
}

}  // namespace

SweepFile read_sweep_file(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw InvalidInput(fmt::format("--config: {}: {}", path, std::strerror(errno)));
  SweepFile file;
  Axes common;
  std::map<std::string, Axes> sections;
  std::vector<std::string> order;
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(stream)) {
    const std::string section = fmt::format("{}", fmt::join(item.parents, "."));
    if (item.name == "++") {
      if (!sections.count(section)) order.push_back(section);
      sections[section];
    }
    if (item.name == "++" || item.name == "--") continue;
    const bool option = std::count(kOptions.begin(), kOptions.end(), item.name) > 0;
    const Field* field = find_field(item.name);
    if (!field && !option) unknown_key(path, item.name);
    if (option && !section.empty())
      throw InvalidInput(fmt::format("{}: {} belongs before the first section", path, item.name));
    bool added = false;
    if (option)
      added = file.options.emplace(item.name, fmt::format("{}", fmt::join(item.inputs, ","))).second;
    else
      added = (section.empty() ? common : sections[section]).emplace(field->name, item.inputs).second;
    if (!added) throw InvalidInput(fmt::format("{}: {} is given twice", path, item.name));
  }
  if (order.empty()) file.grids = {common};
  for (const std::string& name : order) {
    file.grids.push_back(sections[name]);
    file.grids.back().insert(common.begin(), common.end());  // keeps what the section has set
  }
  return file;
}

}  // namespace precbench
