// Reads standard input once. See standard_input.h.
#include "kernels/base/standard_input.h"

#include <fmt/format.h>

#include <cstdio>
#include <mutex>
#include <optional>

#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"

namespace precbench {
namespace {

std::string read_all(std::size_t most) {
  constexpr std::size_t kPart = std::size_t{1} << 16;
  std::string text;
  while (text.size() <= most) {
    const std::size_t size = text.size();
    text.resize(size + kPart);
    const std::size_t count = std::fread(text.data() + size, 1, kPart, stdin);
    text.resize(size + count);
    if (count < kPart) break;
  }
  if (std::ferror(stdin)) throw InvalidInput("standard input: cannot be read");
  if (text.size() > most) throw InvalidInput(fmt::format("standard input: more than {} bytes", most));
  return text;
}

}  // namespace

std::string read_input(const std::string& path, std::size_t most, const char* reader) {
  if (path != kStandardInput) return read_regular_file(path, most);
  static std::mutex mutex;
  static std::optional<std::string> content;
  static std::string first_reader;
  const std::lock_guard lock(mutex);
  if (!content) {
    content = read_all(most);
    first_reader = reader;
  }
  if (first_reader != reader)
    throw InvalidInput(
        fmt::format("{} -: standard input is read once, and {} has read it", reader, first_reader));
  return *content;
}

std::string name_of_input(const std::string& path) {
  return path == kStandardInput ? "standard input" : path;
}

}  // namespace precbench
