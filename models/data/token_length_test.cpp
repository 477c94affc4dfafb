// Bytes per token of texts, token files and documents, from the manifests that tools/data writes.
#include "models/data/token_length.h"

#include <string>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;

namespace {

std::optional<double> length_of(const std::string& path, const std::string& glob = "") {
  DataOptions options;
  options.path = path;
  if (!glob.empty()) options.glob = glob;
  return bytes_per_token(options);
}

/// Manifest as tools/data/tokenize_text.py writes it, for files of 10 and 4 tokens.
constexpr const char* kManifest = R"({"tokenizer": "t", "vocab": 300, "separator": "s",
  "training": {"file": "docs.u16", "documents": 1, "tokens": 10, "bytes": 35},
  "held_out": {"file": "docs.eval.u16", "documents": 1, "tokens": 4, "bytes": 12}})";

}  // namespace

TEST_CASE("bytes_per_token: a text's tokens are its bytes, in a folder as well", "[data]") {
  const TempDirectory directory;
  CHECK(length_of(directory.write("text.txt", "some text")) == 1.0);
  CHECK(length_of(directory.path().string()) == 1.0);
  directory.write("talk.jsonl", "{}");
  CHECK(length_of(directory.path().string()) == 1.0);
  CHECK_FALSE(length_of(""));  // synthetic
  directory.write("a.u16", std::string(8, '\0'));
  CHECK_FALSE(length_of(directory.path().string()));
  CHECK(length_of(directory.path().string(), "*.txt") == 1.0);
}

TEST_CASE("bytes_per_token: token files and documents have the manifest's, each its own part", "[data]") {
  const TempDirectory directory;
  const std::string tokens = directory.write("docs.u16", std::string(20, '\0')),
                    held_out = directory.write("docs.eval.u16", std::string(8, '\0'));
  CHECK_FALSE(length_of(tokens));
  directory.write("docs.json", kManifest);
  CHECK(length_of(tokens) == 3.5);
  CHECK(length_of(held_out) == 3.0);
  directory.write("talk.json", R"({"training": {"file": "talk.jsonl", "tokens": 100, "bytes": 420}})");
  CHECK(length_of(directory.write("talk.jsonl", "{}")) == 4.2);
}

TEST_CASE("bytes_per_token: a manifest of another file or that is none leaves it unknown", "[data]") {
  const TempDirectory directory;
  const std::string tokens = directory.write("docs.u16", std::string(22, '\0'));  // 11 tokens, not 10
  directory.write("docs.json", kManifest);
  CHECK_FALSE(length_of(tokens));
  const std::string other = directory.write("other.u16", std::string(20, '\0'));
  for (const char* text : {kManifest, "{", "[]", R"({"training": 3})", R"({"training": {"file": "other.u16"}})",
                           R"({"training": {"file": "other.u16", "tokens": 0, "bytes": 5}})",
                           R"({"training": {"file": "other.u16", "tokens": 10, "bytes": -5}})",
                           R"({"training": {"file": 7, "tokens": 10, "bytes": 5}})"}) {
    directory.write("other.json", text);
    INFO(text);
    CHECK_FALSE(length_of(other));
  }
  CHECK_FALSE(length_of(directory.write("tokens.bin", std::string(20, '\0'))));
}
