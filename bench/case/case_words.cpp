// Parsing of --routing, and the dtypes of the training state. See case_words.h.
#include "bench/case/case_words.h"

#include <fmt/format.h>

#include <string_view>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"

namespace precbench {

KeptWords kept_words(const Case& c, const Recipe& recipe) {
  static const Case defaults;
  const RecipeState& own = recipe.optimizer;
  const auto choose = [](const std::string& word, const std::string& unset, const std::string& recipes) {
    return word == unset && !recipes.empty() ? recipes : word;
  };
  KeptWords words{.m = c.moments,
                  .v = c.second_moment == defaults.second_moment ? c.moments : c.second_moment,
                  .master = choose(c.master, defaults.master, own.master),
                  .weights = choose(c.weights, defaults.weights, own.weights),
                  .gradients = choose(c.grads, defaults.grads, own.gradients),
                  .gradient_sum = {}};
  if (words.gradients == "e4m3") words.gradient_sum = own.gradient_sum;
  if (c.moments != defaults.moments || c.second_moment != defaults.second_moment) return words;
  if (!own.m.empty()) words.m = own.m;
  if (!own.v.empty()) words.v = own.v;
  return words;
}

RoutingChoice parse_routing(const std::string& text) {
  constexpr EnumNames<Routing, 4> kNames{{"learned", "balanced", "zipf", "one"}};
  const std::size_t colon = text.find(':');
  const auto found = kNames.find(std::string_view(text).substr(0, colon));
  const bool zipf = found == Routing::zipf;
  RoutingChoice choice{found.value_or(Routing::learned)};
  bool right = found && zipf == (colon != std::string::npos);
  if (right && zipf) {
    constexpr double kMost = 16;
    const auto exponent = parse_number<double>(std::string_view(text).substr(colon + 1));
    right = exponent && *exponent >= 0 && *exponent <= kMost;
    choice.exponent = exponent.value_or(0);
  }
  if (!right)
    throw InvalidInput(
        fmt::format("\"{}\" is not learned, balanced, zipf:A with A from 0 to 16, or one", text));
  return choice;
}

}  // namespace precbench
