// Reader for a subset of TOML. See toml.h.
#include "bench/cli/toml.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

using Words = std::vector<std::string>;

/// Removes the underscores between a number's digits: "1_000" is 1000 in TOML. Other words stay.
std::string plain_number(std::string word) {
  if (word.find_first_not_of("0123456789_+-.eE") == word.npos &&
      word.find_first_of("0123456789") <= word.find('_') && !word.ends_with('_') &&
      word.find("__") == word.npos)
    std::erase(word, '_');
  return word;
}

/// Removes the quotes of a key.
std::string unquoted_key(const std::string& key) {
  const bool quoted = key.size() > 1 && (key[0] == '"' || key[0] == '\'') && key.back() == key[0];
  return quoted ? key.substr(1, key.size() - 2) : key;
}

class Reader {
 public:
  Reader(const std::string& name, const std::string& text, const TomlHandler& handler)
      : name_(name), text_(text), handler_(handler) {}

  void read() {
    for (skip_blank(true); !at_end(); skip_blank(true)) {
      item_line_ = line_;
      try {
        peek() == '[' ? read_section() : read_key();
        skip_blank(false);
        if (!at_end() && peek() != '\n')
          throw InvalidInput("expected [section], or key = value with a word or a [list]");
      } catch (const InvalidInput& error) {
        throw InvalidInput(fmt::format("{}: {}", place(), error.what()));
      }
    }
  }

 private:
  std::string place() const { return fmt::format("{}:{}", name_, item_line_); }
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return text_[at_]; }
  char take() {
    if (peek() == '\n') ++line_;
    return text_[at_++];
  }
  /// Skips blanks and comments, with `lines` also line ends.
  void skip_blank(bool lines) {
    while (!at_end() &&
           (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '#' || (lines && peek() == '\n')))
      if (take() == '#')
        while (!at_end() && peek() != '\n') take();
  }
  /// Returns the text up to one of the characters `ends`, without surrounding blanks.
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
          throw InvalidInput("only \" and \\ may follow a backslash; '...' has no escapes");
      }
    if (at_end() || peek() == '\n')
      throw InvalidInput(fmt::format("the quote is not closed: {}{}", quote, word));
    take();
    return word;
  }
  std::string take_word(const char* ends) {
    skip_blank(false);
    return !at_end() && (peek() == '"' || peek() == '\'') ? take_quoted() : plain_number(take_until(ends));
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
    section_ = take_until("]\n");
    if (section_.empty() || section_[0] == '[' || at_end() || peek() != ']')
      throw InvalidInput("expected [name]");
    take();
    note_once(fmt::format("[{}]", section_));
    handler_.section(section_);
  }

  void read_key() {
    const std::string given = unquoted_key(take_until("=\n"));
    if (at_end() || peek() != '=') throw InvalidInput(fmt::format("{}: = and a value are missing", given));
    take();
    const std::string key = handler_.known(section_, given);
    skip_blank(false);
    const bool list = !at_end() && peek() == '[';
    const Words words = list ? take_list() : Words{take_word(" \t\r\n#\"'[]")};
    // Qualified by the section: another section may have the same key.
    note_once(section_.empty() ? key : fmt::format("{} of [{}]", key, section_));
    handler_.key(section_, key, words, place());
  }

  const std::string& name_;
  const std::string& text_;
  const TomlHandler& handler_;
  std::string section_;
  std::size_t at_ = 0;
  int line_ = 1, item_line_ = 1;           // current line; first line of the current item
  std::map<std::string, int> first_line_;  // keyed by key or section
};

}  // namespace

void read_toml(const std::string& name, const std::string& text, const TomlHandler& handler) {
  Reader(name, text, handler).read();
}

}  // namespace precbench
