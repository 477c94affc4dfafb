// Drives zlib. See gzip.h.
#include "tools/explain/gzip.h"

#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <cstdint>
#include <new>
#include <utility>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

/// Window of 32 KiB, with gzip's header.
constexpr int kGzipWindow = 15 + 16;
/// Limit on unpacked over packed bytes, once an input has unpacked to kGzipUnjudgedBytes. Traces reach 40; zeros reach
/// 1,030.
constexpr std::uint64_t kMostGzipExpansion = 300;
constexpr std::uint64_t kGzipUnjudgedBytes = std::uint64_t{64} << 20;

}  // namespace

struct GzipReader::State {
  std::string name;
  Source source;
  z_stream stream{};
  std::array<char, std::size_t{1} << 16> packed;
  std::uint64_t total_in = 0, total_out = 0;
  bool at_end = false, finished = false, in_member = false;

  ~State() { inflateEnd(&stream); }

  [[noreturn]] void refuse(const std::string& why) const {
    throw InvalidInput(fmt::format("{}: {}", name, why));
  }
};

bool is_gzip(std::string_view begin) { return begin.substr(0, 2) == "\x1f\x8b"; }

GzipReader::GzipReader(std::string name, Source source) : state_(std::make_unique<State>()) {
  state_->name = std::move(name);
  state_->source = std::move(source);
  if (inflateInit2(&state_->stream, kGzipWindow) != Z_OK) throw std::bad_alloc();
}

GzipReader::~GzipReader() = default;

std::size_t GzipReader::read(char* to, std::size_t most) {
  State& s = *state_;
  s.stream.next_out = reinterpret_cast<Bytef*>(to);
  s.stream.avail_out = static_cast<uInt>(most);
  while (s.stream.avail_out == most && most > 0 && !s.finished) {
    if (s.stream.avail_in == 0 && !s.at_end) {
      const std::size_t got = s.source(s.packed.data(), s.packed.size());
      s.at_end = got == 0;
      s.total_in += got;
      s.stream.next_in = reinterpret_cast<Bytef*>(s.packed.data());
      s.stream.avail_in = static_cast<uInt>(got);
    }
    if (s.stream.avail_in == 0) {
      if (s.in_member || s.total_in == 0)
        s.refuse("truncated gzip data: the file is incomplete, or still being written");
      s.finished = true;
      break;
    }
    s.in_member = true;
    const int result = inflate(&s.stream, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      s.in_member = false;
      if (inflateReset(&s.stream) != Z_OK) s.refuse("damaged gzip data");
    } else if (result == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      s.refuse("damaged gzip data");
    }
  }
  const std::size_t got = most - s.stream.avail_out;
  s.total_out += got;
  if (s.total_out > kGzipUnjudgedBytes && s.total_out / kMostGzipExpansion > s.total_in)
    s.refuse("unpacks to far more than a trace can");
  return got;
}

}  // namespace precbench
