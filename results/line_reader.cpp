// Lines out of a buffer. See line_reader.h.
#include "results/line_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"

namespace precbench {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 18;

}  // namespace

LineReader::LineReader(const std::string& path, std::size_t most)
    : path_(path), most_(most), file_(open_regular_file(path)), buffer_(kBufferBytes) {}

bool LineReader::fill() {
  errno = 0;
  file_.read(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  if (file_.bad())
    throw InvalidInput(fmt::format("cannot read {}: {}", path_, std::strerror(errno ? errno : EIO)));
  begin_ = 0;
  end_ = static_cast<std::size_t>(file_.gcount());
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
