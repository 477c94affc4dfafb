// Duplicate keys of JSON, and contents that stand for a file. See description.h.
#include "kernels/base/description.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <vector>

namespace precbench {
namespace {

/// Follows the parser and stops at the first key that its object has already.
class KeyWatcher : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::optional<std::string> found;  ///< path of the key

  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(number_integer_t) override { return count(); }
  bool number_unsigned(number_unsigned_t) override { return count(); }
  bool number_float(number_float_t, const string_t&) override { return count(); }
  bool string(string_t&) override { return count(); }
  bool binary(binary_t&) override { return count(); }
  bool start_object(std::size_t) override { return open(false); }
  bool start_array(std::size_t) override { return open(true); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }
  bool key(string_t& name) override {
    Level& level = levels_.back();
    level.key = name;
    if (level.keys.insert(name).second) return true;
    found = path();
    return false;
  }

 private:
  struct Level {
    bool array = false;
    std::size_t values = 0;  ///< of an array, those before the current one
    std::string key = {};    ///< of an object, the current one
    std::set<std::string> keys = {};
  };

  bool open(bool array) {
    levels_.push_back({.array = array});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return count();
  }
  bool count() {
    if (!levels_.empty()) ++levels_.back().values;
    return true;
  }
  std::string path() const {
    std::string path;
    for (const Level& level : levels_)
      path += level.array ? fmt::format("[{}]", level.values) : (path.empty() ? "" : ".") + level.key;
    return path;
  }

  std::vector<Level> levels_;
};

}  // namespace

std::optional<std::string> duplicate_key(std::string_view text) {
  KeyWatcher watcher;
  nlohmann::json::sax_parse(text, &watcher);
  return watcher.found;
}

std::optional<std::string> stands_for_file(std::string_view text) {
  const std::string_view content = without_byte_order_mark(text);
  if (content.starts_with("version https://git-lfs.github.com/spec/"))
    return "a Git LFS pointer, not the file itself: fetch it with git lfs pull";
  const std::size_t first = content.find_first_not_of(" \t\r\n");
  if (first == content.npos) return std::nullopt;
  std::string start(content.substr(first, 9));
  std::transform(start.begin(), start.end(), start.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (start.starts_with("<!doctype") || start.starts_with("<html"))
    return "a web page (HTML), not the file itself: the download failed or needs a login";
  return std::nullopt;
}

}  // namespace precbench
