// Signatures and name endings of files that must not be read as text. See file_kind.h.
#include "models/data/file_kind.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "kernels/base/description.h"

namespace precbench {
namespace {

using namespace std::string_view_literals;

struct Kind {
  const char* advice;
  std::vector<std::string_view> signatures;  ///< first bytes of the file
  std::vector<std::string_view> endings;     ///< of the file name, in lower case
};

constexpr const char* kParquet =
    "a Parquet table: turn it into tokens or text first (tools/data/tokenize_text.py)";

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kKinds = {
      {"gzip-compressed: unpack it first (gunzip)", {"\x1f\x8b"sv}, {".gz", ".tgz"}},
      {"zstd-compressed: unpack it first (unzstd)", {"\x28\xb5\x2f\xfd"sv}, {".zst", ".zstd"}},
      {"xz-compressed: unpack it first (unxz)", {"\xfd\x37zXZ\0"sv}, {".xz", ".lzma"}},
      {"bzip2-compressed: unpack it first (bunzip2)", {}, {".bz2"}},
      {"lz4-compressed: unpack it first (unlz4)", {"\x04\x22\x4d\x18"sv}, {".lz4"}},
      {"brotli-compressed: unpack it first (brotli -d)", {}, {".br"}},
      {"NumPy arrays in a zip archive: write one array's tokens to a .u16 or .u32 file (array.tofile)",
       {},
       {".npz"}},
      {"a PyTorch file: write its tokens to a .u16 or .u32 file (tensor.numpy().tofile)",
       {},
       {".pt", ".pth"}},
      {"a zip archive: unpack it first (unzip)", {"PK\x03\x04"sv, "PK\x05\x06"sv}, {".zip"}},
      {"a 7z archive: unpack it first (7z x)", {"7z\xbc\xaf\x27\x1c"sv}, {".7z"}},
      {"a RAR archive: unpack it first (unrar)", {"Rar!\x1a\x07"sv}, {".rar"}},
      {"a NumPy array: write its tokens to a .u16 or .u32 file (array.tofile)", {"\x93NUMPY"sv}, {".npy"}},
      {kParquet, {}, {".parquet"}},
      {"an Arrow table: turn it into tokens or text first (tools/data/tokenize_text.py)",
       {"ARROW1\0\0"sv},
       {".arrow", ".feather"}},
      {"an HDF5 file: write its tokens to a .u16 or .u32 file", {"\x89HDF\r\n\x1a\n"sv}, {".h5", ".hdf5"}},
      {"an ORC table: turn it into text or tokens first", {}, {".orc"}},
      {"an Avro table: turn it into text or tokens first", {"Obj\x01"sv}, {".avro"}},
      {"TFRecords: turn them into text or tokens first", {}, {".tfrecord", ".tfrecords"}},
      {"an SQLite database: turn it into text or tokens first", {"SQLite format 3\0"sv}, {".sqlite"}},
      {"a Python pickle: write its tokens to a .u16 or .u32 file", {}, {".pkl", ".pickle"}},
      {"weights, not text: --init-from takes them", {}, {".safetensors"}},
      {"weights, not text", {"GGUF\x02\0\0\0"sv, "GGUF\x03\0\0\0"sv}, {".gguf", ".ckpt"}},
      {"a PDF document: extract its text first (pdftotext)", {"%PDF-"sv}, {".pdf"}},
      {"text in UTF-16: convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)",
       {"\xff\xfe"sv, "\xfe\xff"sv},
       {}},
      {"a tar archive: unpack it first (tar -xf)", {}, {".tar"}},
      {"a Git LFS pointer, not the file itself: fetch it with git lfs pull",
       {"version https://git-lfs.github.com/spec/"sv},
       {}},
  };
  return kKinds;
}

/// Six matching bytes do not occur at the start of tokens by chance.
constexpr std::size_t kLongSignature = 6;
/// Number of bytes examined, the same as in git.
constexpr std::size_t kLookedAt = 8000;

std::string_view bytes_of(const MappedFile& file, std::size_t most) {
  return {reinterpret_cast<const char*>(file.data()), std::min(static_cast<std::size_t>(file.size()), most)};
}

/// Detects formats that a prefix alone does not distinguish from text.
const char* recognized_by_structure(const MappedFile& file) {
  const std::string_view all = bytes_of(file, static_cast<std::size_t>(file.size()));
  constexpr std::string_view kParquetMark = "PAR1";
  if (all.size() >= 12 && all.starts_with(kParquetMark) && all.ends_with(kParquetMark)) return kParquet;
  if (all.size() >= 10 && all.starts_with("BZh") && all.substr(4, 6) == "1AY&SY")
    return "bzip2-compressed: unpack it first (bunzip2)";
  if (all.size() >= 512 && all.substr(257, 5) == "ustar") return "a tar archive: unpack it first (tar -xf)";
  std::uint64_t header = 0;  // safetensors: length of the JSON that follows
  if (all.size() > sizeof header) std::memcpy(&header, all.data(), sizeof header);
  if (header > 1 && header <= all.size() - sizeof header && all[sizeof header] == '{' && all[7] == '\0')
    return "weights, not text: --init-from takes them";
  return nullptr;
}

std::string ending_of(const std::string& path) {
  std::string ending = std::filesystem::path(path).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending;
}

}  // namespace

std::optional<std::string> not_a_corpus_reason(const MappedFile& file, bool tokens) {
  const std::string_view start = bytes_of(file, kLookedAt);
  const std::string ending = ending_of(file.path());
  for (const Kind& kind : kinds()) {
    const auto begins = [&](std::string_view signature) {
      return start.starts_with(signature) && (!tokens || signature.size() >= kLongSignature);
    };
    if (std::any_of(kind.signatures.begin(), kind.signatures.end(), begins) ||
        std::count(kind.endings.begin(), kind.endings.end(), ending))
      return kind.advice;
  }
  if (tokens) return stands_for_file(start);
  if (const char* advice = recognized_by_structure(file)) return advice;
  if (start.find('\0') != start.npos)
    return "a binary file, not text: tokens are read from files named .bin, .u16 or .u32";
  return std::nullopt;
}

}  // namespace precbench
