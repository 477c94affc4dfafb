// Drives liblzma. See xz.h.
#include "kernels/base/xz.h"

#include <fmt/format.h>
#include <lzma.h>

#include <array>
#include <cstdint>
#include <new>
#include <utility>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

constexpr std::string_view kXzMagic("\xFD\x37zXZ\0", kXzMagicBytes);
/// Memory for unpacking. xz -9 needs 65 MiB; files packed with a larger dictionary are rare.
constexpr std::uint64_t kMostXzMemory = std::uint64_t{128} << 20;
/// Limit on unpacked over packed bytes, once an input has unpacked to kXzUnjudgedBytes. Committed records reach 10;
/// a bomb of zeros reaches 7,000.
constexpr std::uint64_t kMostXzExpansion = 500;
constexpr std::uint64_t kXzUnjudgedBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;

}  // namespace

struct XzReader::State {
  std::string name;
  Source source;
  lzma_stream stream = LZMA_STREAM_INIT;
  std::string pending;                            ///< first bytes, until they are unpacked
  std::array<char, std::size_t{1} << 16> packed;  ///< what `source` returned last
  bool at_end = false, finished = false;

  ~State() { lzma_end(&stream); }

  [[noreturn]] void refuse(const std::string& why) const {
    throw InvalidInput(fmt::format("{}: {}", name, why));
  }
  void check(lzma_ret result) const;
};

/// Throws unless unpacking goes on.
void XzReader::State::check(lzma_ret result) const {
  switch (result) {
    case LZMA_OK:
    case LZMA_STREAM_END:
      return;
    case LZMA_MEM_ERROR:
      throw std::bad_alloc();
    case LZMA_MEMLIMIT_ERROR:
      refuse(fmt::format(
          "unpacking it takes {} MiB of memory, and at most {} are used; pack it again with xz -9",
          (lzma_memusage(&stream) + kMebibyte - 1) / kMebibyte, kMostXzMemory / kMebibyte));
    case LZMA_OPTIONS_ERROR:
      refuse("packed with an option of xz that this liblzma does not know; pack it again with xz -9");
    case LZMA_BUF_ERROR:
      refuse(fmt::format("truncated xz data: the file ends after {} bytes, in the middle of its data",
                         stream.total_in));
    default:
      refuse(
          fmt::format("damaged xz data, found {} bytes into the file; get the file again", stream.total_in));
  }
}

bool is_xz(std::string_view begin) { return begin.starts_with(kXzMagic); }

bool may_be_xz(std::string_view begin) { return kXzMagic.starts_with(begin.substr(0, kXzMagicBytes)); }

XzReader::XzReader(std::string name, std::string begin, Source source) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.name = std::move(name), s.source = std::move(source), s.pending = std::move(begin);
  s.stream.next_in = reinterpret_cast<const std::uint8_t*>(s.pending.data());
  s.stream.avail_in = s.pending.size();
  s.check(lzma_stream_decoder(&s.stream, kMostXzMemory, LZMA_CONCATENATED));
}

XzReader::~XzReader() = default;

std::size_t XzReader::read(char* to, std::size_t most) {
  State& s = *state_;
  s.stream.next_out = reinterpret_cast<std::uint8_t*>(to);
  s.stream.avail_out = most;
  while (s.stream.avail_out > 0 && !s.finished) {
    if (s.stream.avail_in == 0 && !s.at_end) {
      s.stream.avail_in = s.source(s.packed.data(), s.packed.size());
      s.stream.next_in = reinterpret_cast<const std::uint8_t*>(s.packed.data());
      s.at_end = s.stream.avail_in == 0;
    }
    const lzma_ret result = lzma_code(&s.stream, s.at_end ? LZMA_FINISH : LZMA_RUN);
    s.check(result);
    s.finished = result == LZMA_STREAM_END;
  }
  if (s.stream.total_out > kXzUnjudgedBytes && s.stream.total_out / kMostXzExpansion > s.stream.total_in)
    s.refuse(fmt::format("unpacks to more than {} times its size, which no records do", kMostXzExpansion));
  return most - s.stream.avail_out;
}

}  // namespace precbench
