// Splits buffered input into lines. See line_reader.h.
#include "results/record/line_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "kernels/base/untrusted_input.h"
#include "kernels/base/xz.h"

namespace precbench {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 18;

[[noreturn]] void cannot_read(const std::string& name, int error) {
  throw InvalidInput(fmt::format("cannot read {}: {}", name, error_text(error)));
}

/// Returns true if reading ends by itself or by a user at a terminal. Other devices, such as /dev/zero, may
/// never end.
bool ends(int descriptor, const struct stat& status) {
  if (S_ISREG(status.st_mode) || S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)) return true;
  constexpr unsigned kNullMajor = 1, kNullMinor = 3;
  const bool is_null = major(status.st_rdev) == kNullMajor && minor(status.st_rdev) == kNullMinor;
  return S_ISCHR(status.st_mode) && (is_null || isatty(descriptor));
}

/// Duplicates the descriptor. Opening it again would fail for a socket, and would restart a file at its
/// beginning.
int duplicate(int named, const std::string& name) {
  struct stat status {};
  if (::fstat(named, &status) != 0) cannot_read(name, errno);
  if (S_ISDIR(status.st_mode)) throw InvalidInput(name + ": a folder, not a file");
  if (!ends(named, status)) throw InvalidInput(name + ": not a file, a pipe or a terminal");
  const int descriptor = ::fcntl(named, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) cannot_read(name, errno);
  return descriptor;
}

int open_to_read(const std::string& path) {
  if (const auto named = named_descriptor(path)) return duplicate(*named, input_name(path));
  open_regular_file(path);  // throws if it is not one
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) cannot_read(path, errno);
  return descriptor;
}

}  // namespace

std::optional<int> named_descriptor(const std::string& path) {
  if (path == "-" || path == "/dev/stdin") return STDIN_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    const auto number = parse_number<int>(std::string_view(path).substr(folder.size()));
    if (number && *number >= 0) return number;
  }
  return std::nullopt;
}

std::string input_name(const std::string& path) {
  return named_descriptor(path) == STDIN_FILENO ? "standard input" : path;
}

LineReader::LineReader(const std::string& path, std::size_t most)
    : path_(path), most_(most), descriptor_(open_to_read(path)), buffer_(kBufferBytes) {}

LineReader::~LineReader() { ::close(descriptor_); }

/// Reads bytes as they are stored; returns 0 at the end.
std::size_t LineReader::read_input(char* to, std::size_t most) {
  ssize_t got;
  do got = ::read(descriptor_, to, most);
  while (got < 0 && errno == EINTR);
  if (got < 0) cannot_read(input_name(path_), errno);
  return static_cast<std::size_t>(got);
}

/// Fills the buffer with the first bytes of plain input, or begins to unpack.
void LineReader::find_packing() {
  packing_known_ = true;
  const auto begin = [this] { return std::string_view(buffer_.data(), end_); };
  // A pipe may give them one by one.
  while (end_ < kXzMagicBytes && may_be_xz(begin())) {
    const std::size_t got = read_input(buffer_.data() + end_, buffer_.size() - end_);
    if (got == 0) break;
    end_ += got;
  }
  if (!is_xz(begin())) return;
  unpacked_ = std::make_unique<XzReader>(input_name(path_), std::string(begin()),
                                         [this](char* to, std::size_t most) { return read_input(to, most); });
  end_ = 0;
}

bool LineReader::fill() {
  begin_ = end_ = 0;
  if (!packing_known_) find_packing();
  if (end_ == 0)
    end_ = unpacked_ ? unpacked_->read(buffer_.data(), buffer_.size())
                     : read_input(buffer_.data(), buffer_.size());
  return end_ > 0;
}

bool LineReader::next() {
  line_.clear();
  bytes_ = 0;
  ended_ = false;
  while (!ended_ && (begin_ < end_ || fill())) {
    const char* from = buffer_.data() + begin_;
    const auto* newline = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
    const std::size_t count = newline ? static_cast<std::size_t>(newline - from) : end_ - begin_;
    line_.append(from, std::min(count, most_ - line_.size()));
    bytes_ += count;
    ended_ = newline != nullptr;
    begin_ += count + (ended_ ? 1 : 0);
  }
  if (bytes_ == 0 && !ended_) return false;
  ++number_;
  return true;
}

}  // namespace precbench
