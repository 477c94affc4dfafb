// Fuzzes flag values: the first byte selects the field, a newline ends a word.
#include <sstream>
#include <vector>

#include "bench/cli/axis.h"
#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(axis) {
  if (size == 0) return 0;
  const Field& field = case_fields()[data[0] % case_fields().size()];
  std::vector<std::string> words;
  std::istringstream lines(std::string(text_of(data + 1, size - 1)));
  for (std::string word; std::getline(lines, word);) words.push_back(word);
  taken([&] {
    check_words(field, words);
    for (const std::string& value : field.axis ? expand_axis(field, words) : words) {
      Case c;
      set_text(c, field, value);
      const std::string text = get_text(c, field);
      set_text(c, field, text);  // displayed values can be typed again
      expect(get_text(c, field) == text);
    }
  });
  return 0;
}
