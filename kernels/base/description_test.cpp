// Duplicate keys, and files that a failed download leaves.
#include "kernels/base/description.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

TEST_CASE("duplicate_key: returns the path of the first key that an object has twice", "[untrusted]") {
  CHECK(duplicate_key(R"({"a": 1, "b": 2, "a": 3})") == "a");
  CHECK(duplicate_key(R"({"fprop": {"a": {"scale": "f32", "scale": "ue8m0"}}})") == "fprop.a.scale");
  CHECK(duplicate_key(R"({"points": [{"id": 1}, 7, [{}, {"x": [], "id": 2, "id": 2}]]})") ==
        "points[2][1].id");
  CHECK(duplicate_key(R"({"a": {"b": 1}, "c": {"b": 1, "\u0062": 2}})") ==
        "c.b");  // one key, written in two ways
  // Equal keys of different objects, and equal values, are no duplicates.
  CHECK_FALSE(duplicate_key(R"([{"a": "a"}, {"a": {"a": ["a", "a"]}}, {"A": 1, "a": 2}])"));
  CHECK_FALSE(duplicate_key("{"));  // not JSON: the parser reports it
  CHECK_FALSE(duplicate_key("7"));
}

TEST_CASE("parse_strictly: refuses a duplicate key and what a failed download leaves", "[untrusted]") {
  const auto refusal = [](const std::string& text) {
    return refusal_of([&] { parse_strictly<nlohmann::json>(text); });
  };
  CHECK(refusal(R"({"vocab": 256, "rope": {"theta": NaN, "theta": 1}})") ==
        "rope.theta: given twice; remove one of the two");
  CHECK(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n") ==
        "a Git LFS pointer, not the file itself: fetch it with git lfs pull");
  const std::string page = "a web page (HTML), not the file itself: the download failed or needs a login";
  CHECK(refusal("\xEF\xBB\xBF\n <!DOCTYPE html><html></html>") == page);
  CHECK(refusal("<HTML>") == page);
  CHECK(refusal("{\n  // layers\n  \"layers\": 1}") ==
        "not valid JSON in line 2, column 3: JSON has no comments");
  CHECK(refusal("# layers\n{}") == "not valid JSON in line 1, column 1: JSON has no comments");
  CHECK(refusal("<") == "not valid JSON in line 1, column 1");
}
