// Limits before parsing, each from both sides, and files that would block or mislead.
#include "kernels/base/untrusted_input.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

TEST_CASE("beyond: JSON over the limits of depth or members or bytes is rejected before parsing",
          "[untrusted]") {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  const auto object = [](int members) {
    std::string text = "{";
    for (int i = 0; i < members; ++i) text += fmt::format("{}\"{}\":[1,2]", i ? "," : "", i);
    return text + "}";
  };
  const JsonLimits limits{200, 5, 4};
  CHECK_FALSE(beyond(nested(5), limits));
  CHECK(beyond(nested(6), limits) == "nested deeper than 5");
  CHECK_FALSE(beyond(object(4), limits));
  CHECK(beyond(object(5), limits) == "an object of more than 4 members");
  CHECK_FALSE(beyond(std::string(200, ' '), limits));
  CHECK(beyond(std::string(201, ' '), limits) == "201 bytes, and at most 200 are read");
  // Brackets inside a string do not nest, and an escaped quote does not end it.
  CHECK_FALSE(beyond(R"({"a\"[[[[[[[[":"{{{{{{{{::::::::","b\\":1})", limits));
  CHECK(beyond(R"({"a\\":[[[[[[]]]]]]})", limits) == "nested deeper than 5");
  // Members are counted separately for each object.
  CHECK_FALSE(beyond(R"([{"a":1,"b":2,"c":3},{"a":1,"b":2,"c":3}])", limits));
  CHECK_FALSE(beyond("]]]]]}}}:::", limits));  // not JSON: the parser reports it
}

TEST_CASE("parse_untrusted: parses or throws a message of one line", "[untrusted]") {
  const auto parse = [](const std::string& text) {
    return parse_untrusted<nlohmann::json>(text, kDescriptionLimits);
  };
  CHECK(parse(R"({"layers": 2})").at("layers") == 2);
  CHECK(refusal_of([&] { parse("{\"layers\": "); }) == "not valid JSON in line 1, column 12");
  CHECK(refusal_of([&] { parse("{\"layers\": 1e999}"); }) == "not valid JSON: a number is beyond every type");
  CHECK(refusal_of([&] { parse("{\"a\": 1,\n \"b\": 2,\n}\n"); }) == "not valid JSON in line 3, column 1");
  CHECK(refusal_of([&] { parse("{\n"); }) == "not valid JSON in line 2, column 1");
  CHECK(refusal_of([&] { parse(std::string(150'000, '[')); }) == "nested deeper than 32");
}

TEST_CASE("parse_description: accepts a byte order mark and Python's constants", "[untrusted]") {
  const auto parse = [](const std::string& text) { return parse_description<nlohmann::json>(text); };
  CHECK(parse("\xEF\xBB\xBF{\"layers\": 2}").at("layers") == 2);
  CHECK(parse(R"({"a": NaN, "b": [-Infinity,Infinity]})") ==
        nlohmann::json({{"a", "NaN"}, {"b", {"-Infinity", "Infinity"}}}));
  // Inside strings they are ordinary text, also after an escaped quote.
  CHECK(parse(R"({"NaN": "\"Infinity\\", "b": NaN})") ==
        nlohmann::json({{"NaN", "\"Infinity\\"}, {"b", "NaN"}}));
  CHECK(refusal_of([&] { parse("{\"a\": nan}"); }) == "not valid JSON in line 1, column 8");
  CHECK(refusal_of([&] { parse("{\"a\": Infinity1}"); }).starts_with("not valid JSON in line 1"));
  CHECK(refusal_of([&] { parse("\xFF\xFE{"); }) == "not valid JSON: the file is UTF-16; save it as UTF-8");
  CHECK(refusal_of([&] { parse(std::string(150'000, '[')); }) == "nested deeper than 32");
}

TEST_CASE("open_regular_file: only regular files are read", "[untrusted]") {
  const TempDirectory folder;
  const std::string path = folder.write("text", "0123456789"), pipe = folder / "pipe";
  CHECK(read_regular_file(path, 10) == "0123456789");
  CHECK(refusal_of([&] { read_regular_file(path, 9); }) == path + ": 10 bytes, and at most 9 are read");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(refusal_of([&] { open_regular_file(pipe); }) == pipe + ": not a regular file");
  CHECK(refusal_of([&] { open_regular_file("/dev/zero"); }) == "/dev/zero: not a regular file");
  CHECK(contains(refusal_of([&] { open_regular_file(folder / "none"); }), "no such file"));
  CHECK(contains(refusal_of([&] { open_regular_file(folder / "."); }), "a folder, not a file"));
}
