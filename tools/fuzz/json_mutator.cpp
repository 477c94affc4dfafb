// Mutator of targets that read JSON, one object per line. Random bytes rarely pass a schema, so a line is
// parsed and one of its values replaced by a malicious one, moved, dropped or repeated.
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/untrusted_input.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed);

namespace {

using Json = nlohmann::ordered_json;
using Random = std::minstd_rand;

/// Placeholder for the text of a malicious value, which need not be valid JSON.
constexpr const char* kHole = "@hole@";

// clang-format off
constexpr const char* kHostile[] = {
    "0", "-1", "1", "-0.0", "1.5", "3.0", "1e3", "4294967298", "-2147483649", "9007199254740993",
    "9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551615", "1e30", "1e308",
    "-1e308", "4.9e-324", "1e400", "null", "true", "false", "[]", "{}", "[[]]", "\"\"", "\"nan\"", "\"inf\"",
    "\"ok\"", "\"oom\"", "\"timeout\"", "\"cuda\"", "\"cpu\"", "\"bf16\"", "\"fsdp\"", "\"a/b~c\"", "\"\\u0000\"",
    "\"\\u001b[31m\\u009b1m\"", "\"a\\nb\\r\\tc\"", "\"|`<script>&amp;\\\"'\\\\]]>::error::%0A\"",
    "\"\\ufffe\\ud800\"", "\"\\ufffe\\uffff\"", "\"\\u202e\\u2066\"", "\"../../x\"", "\"/dev/null\"", "\"\xff\"",
    "NaN", "-Infinity",
};
// clang-format on

std::size_t below(Random& random, std::size_t end) { return random() % end; }

std::string hostile(Random& random) {
  constexpr std::size_t kOthers = 3;
  const std::size_t choice = below(random, std::size(kHostile) + kOthers);
  if (choice < std::size(kHostile)) return kHostile[choice];
  const std::size_t count = std::size_t{1} << below(random, 13);
  if (choice == std::size(kHostile)) return std::string(count, '[') + std::string(count, ']');
  if (choice == std::size(kHostile) + 1) return '"' + std::string(count, 'a') + '"';
  std::string list = "[0";
  for (std::size_t i = 0; i < count; ++i) list += ",1e3";
  return list + ']';
}

std::vector<Json*> places_in(Json& json) {
  std::vector<Json*> places = {&json};
  for (std::size_t i = 0; i < places.size(); ++i)
    if (places[i]->is_structured())
      for (Json& part : *places[i]) places.push_back(&part);
  return places;
}

void drop_part(Json& json, Random& random) {
  if (!json.is_structured() || json.empty()) return;
  auto part = json.begin();
  std::advance(part, static_cast<std::ptrdiff_t>(below(random, json.size())));
  json.erase(part);
}

void change(Json& json, Random& random) {
  const std::vector<Json*> places = places_in(json);
  Json& place = *places[below(random, places.size())];
  switch (below(random, 8)) {
    case 0:
      return drop_part(place, random);
    case 1: {
      const Json other = *places[below(random, places.size())];
      place = other;
      return;
    }
    case 2:
      if (place.is_object())
        place[below(random, 2) == 0 ? "a~/b|<\x1b>" : "extra"] = kHole;
      else if (place.is_array())
        place.push_back(place.empty() ? Json(kHole) : Json(place[below(random, place.size())]));
      return;
    case 3:
      if (place.is_number_integer())
        place = place.get<std::int64_t>() ^ (std::int64_t{1} << below(random, 63));
      else if (place.is_number())
        place = place.get<double>() * (below(random, 2) ? -1.0 : 1e9);
      return;
    case 4:
      if (place.is_string()) {
        auto text = place.get<std::string>();
        const std::size_t size = text.size();
        text.resize(size + 64);
        text.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(text.data()), size, text.size()));
        place = text;
      }
      return;
    default:
      place = kHole;
  }
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0, end; begin <= text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    lines.emplace_back(text.substr(begin, end - begin));
  }
  return lines;
}

/// Mutates a line. Returns false if this mutator cannot parse it.
bool change_line(std::string& line, Random& random) {
  if (precbench::beyond(line, {.bytes = line.size(), .depth = 64, .members = 10'000})) return false;
  Json json = Json::parse(line, nullptr, false);
  if (json.is_discarded()) return false;
  change(json, random);
  line = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  const std::string hole = Json(kHole).dump();
  if (const std::size_t at = line.find(hole); at != std::string::npos)
    line.replace(at, hole.size(), hostile(random));
  return true;
}

}  // namespace

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                    unsigned seed) {
  Random random(seed);
  std::vector<std::string> lines = lines_of({reinterpret_cast<const char*>(data), size});
  const std::size_t chosen = below(random, lines.size());
  const std::size_t action = below(random, 16);
  bool changed = true;
  if (action == 0)
    changed = false;
  else if (action == 1)
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(below(random, lines.size() + 1)),
                 std::string(lines[chosen]));
  else if (action == 2 && lines.size() > 1)
    lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(chosen));
  else
    for (std::size_t i = 0; i <= below(random, 3) && changed; ++i)
      changed = change_line(lines[chosen], random);
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  if (!text.empty()) text.pop_back();
  if (!changed || text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
