// A reader for the part of TOML that sweep files need: sections, and keys with a word or a list of words.
// CLI11's own knows no lines, joins what is given twice, and ends an open quote wherever the line ends.
#include "bench/cli/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"

namespace precbench {
namespace {

using Words = std::vector<std::string>;

constexpr std::size_t kLongestFile = std::size_t{1} << 20;

std::string text_of(const std::string& path) {
  try {
    return read_regular_file(path, kLongestFile);
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("--config: {}", error.what()));
  }
}

std::string unknown_key(const std::string& key) {
  Words valid = {"out", "timeout", "interleave"};
  for (const Field& field : case_fields()) valid.push_back(field.name);
  const std::string near = nearest(key, valid);
  return fmt::format(
      "unknown key {}{}", key,
      near.empty() ? "; precbench sweep --help lists the fields" : "; did you mean " + near + "?");
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), text_(text_of(path)) {}

  SweepFile read() {
    for (skip_blank(true); !at_end(); skip_blank(true)) {
      item_line_ = line_;
      try {
        peek() == '[' ? read_section() : read_key();
        skip_blank(false);
        if (!at_end() && peek() != '\n')
          throw InvalidInput("a line is [section], or key = value with a word or a [list]");
      } catch (const InvalidInput& error) {
        throw InvalidInput(fmt::format("{}:{}: {}", path_, item_line_, error.what()));
      }
    }
    if (file_.grids.empty()) file_.grids = {{"", {}}};
    for (SweepFile::Grid& grid : file_.grids)
      grid.axes.insert(common_.begin(), common_.end());  // keeps what the section has set
    return std::move(file_);
  }

 private:
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return text_[at_]; }
  char take() {
    if (peek() == '\n') ++line_;
    return text_[at_++];
  }
  /// Blanks and comments, and line ends where they mean nothing.
  void skip_blank(bool lines) {
    while (!at_end() &&
           (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '#' || (lines && peek() == '\n')))
      if (take() == '#')
        while (!at_end() && peek() != '\n') take();
  }
  /// Up to one of `ends`, without the blanks around it.
  std::string take_until(const char* ends) {
    skip_blank(false);
    const std::size_t end = std::min(text_.find_first_of(ends, at_), text_.size());
    std::string word = text_.substr(at_, end - at_);
    at_ = end;
    word.erase(word.find_last_not_of(" \t\r") + 1);
    return word;
  }

  std::string take_quoted() {
    const char quote = take();
    std::string word;
    for (; !at_end() && peek() != quote && peek() != '\n'; word += take())
      if (quote == '"' && peek() == '\\') {
        take();
        if (at_end() || (peek() != '"' && peek() != '\\'))
          throw InvalidInput(
              "after a backslash comes \" or another backslash; '...' takes everything as it is");
      }
    if (at_end() || peek() == '\n')
      throw InvalidInput(fmt::format("the quote is not closed: {}{}", quote, word));
    take();
    return word;
  }
  std::string take_word(const char* ends) {
    skip_blank(false);
    return !at_end() && (peek() == '"' || peek() == '\'') ? take_quoted() : take_until(ends);
  }

  Words take_list() {
    take();
    Words words;
    for (skip_blank(true); !at_end() && peek() != ']'; skip_blank(true)) {
      words.push_back(take_word(" \t\r\n,]#\"'["));
      skip_blank(true);
      if (!at_end() && peek() == ',')
        take();
      else if (!at_end() && peek() != ']')
        throw InvalidInput("values of a list are separated by commas");
    }
    if (at_end()) throw InvalidInput("the list is not closed");
    take();
    return words;
  }

  void note_once(const std::string& what) {
    const auto [first, added] = first_line_.emplace(what, item_line_);
    if (!added) throw InvalidInput(fmt::format("{} is given twice, first in line {}", what, first->second));
  }

  void read_section() {
    take();
    const std::string name = take_until("]\n");
    if (name.empty() || name[0] == '[' || at_end() || peek() != ']')
      throw InvalidInput("a section is [name]");
    take();
    note_once(fmt::format("[{}]", name));
    file_.grids.push_back({name, {}});
  }

  void read_key() {
    const std::string name = take_until("=\n");
    if (at_end() || peek() != '=') throw InvalidInput(fmt::format("{}: = and a value are missing", name));
    take();
    const Field* field = find_field(name);
    const bool option = name == "out" || name == "timeout" || name == "interleave";
    if (!field && !option) throw InvalidInput(unknown_key(name));
    skip_blank(false);
    const Words words = !at_end() && peek() == '[' ? take_list() : Words{take_word(" \t\r\n#\"'[]")};
    const bool in_section = !file_.grids.empty();
    const std::string key = field ? field->name : name;
    // Keys of a section stand behind its name, so that another's may be the same.
    note_once(in_section ? fmt::format("{} of [{}]", key, file_.grids.back().section) : key);
    if (words.size() != 1 && (!field || !field->axis)) throw InvalidInput(key + " takes one value");
    if (field) {
      check_words(*field, words);
      (in_section ? file_.grids.back().axes : common_)[key] = words;
    } else if (in_section) {
      throw InvalidInput(key + " belongs before the first section");
    } else {
      set_option(key, words.front());
    }
  }

  void set_option(const std::string& key, const std::string& word) {
    if (key == "out") {
      file_.out = word;
    } else if (key == "timeout") {
      file_.timeout_s = parse_timeout(word);
    } else {
      if (word != "true" && word != "false")
        throw InvalidInput(fmt::format("interleave: \"{}\" is neither true nor false", word));
      file_.interleave = word == "true";
    }
  }

  std::string path_, text_;
  std::size_t at_ = 0;
  int line_ = 1, item_line_ = 1;           // here, and where the section or key being read begins
  std::map<std::string, int> first_line_;  // of keys and sections
  Axes common_;
  SweepFile file_;
};

}  // namespace

SweepFile read_sweep_file(const std::string& path) { return Reader(path).read(); }

double parse_timeout(const std::string& text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || !std::isfinite(seconds))
    throw InvalidInput(fmt::format("--timeout: \"{}\" is not a number of seconds", text));
  if (seconds < 0) throw InvalidInput("--timeout: must not be negative");
  return seconds;
}

}  // namespace precbench
