// Reads published losses. See published_losses.h.
#include "tools/analysis/published_losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/errors.h"
#include "tools/analysis/token_cost.h"
#include "tools/text/embedded_text.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

std::optional<double> number_at(const Json& entry, const char* key) {
  const auto found = entry.find(key);
  return found != entry.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

std::string text_at(const Json& entry, const char* key) {
  const auto found = entry.find(key);
  return found != entry.end() && found->is_string() ? found->get<std::string>() : "";
}

PublishedLoss loss_of(const Json& entry) {
  PublishedLoss one;
  const std::string kind = text_at(entry, "kind");
  one.kind = kind == "failure" ? PublishedLoss::Kind::failure
             : kind == "gap"   ? PublishedLoss::Kind::gap
                               : PublishedLoss::Kind::no_difference;
  one.id = text_at(entry, "id"), one.group = text_at(entry, "group"), one.source = text_at(entry, "source");
  one.where = text_at(entry, "where"), one.model = text_at(entry, "model");
  one.published = text_at(entry, "published"), one.tier = text_at(entry, "tier");
  one.nearest = text_at(entry, "nearest"), one.differs = text_at(entry, "differs");
  one.from_scratch = text_at(entry, "stage") == "from scratch";
  one.by_numerics = text_at(entry, "cause") == "numerics";
  one.parameters = number_at(entry, "params_active");
  one.tokens = number_at(entry, "tokens"), one.tokens_before = number_at(entry, "tokens_before");
  one.gap_nats = number_at(entry, "gap_nats"), one.gap_percent = number_at(entry, "gap_percent");
  one.bound_nats = number_at(entry, "bound_nats"), one.bound_percent = number_at(entry, "bound_percent");
  one.noise_nats = number_at(entry, "noise_nats");
  return one;
}

}  // namespace

std::vector<PublishedLoss> read_published_losses(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("losses") || !json["losses"].is_array())
    throw InvalidInput("published losses: no JSON object with a list `losses`");
  std::vector<PublishedLoss> losses;
  for (const Json& entry : json["losses"]) losses.push_back(loss_of(entry));
  return losses;
}

const std::vector<PublishedLoss>& published_losses() {
  static const std::vector<PublishedLoss> kLosses = read_published_losses(kPublishedLosses);
  return kLosses;
}

const PublishedLoss* known_failure(const std::string& recipe) {
  const std::vector<PublishedLoss>& all = published_losses();
  const auto found = std::find_if(all.begin(), all.end(), [&](const PublishedLoss& one) {
    return one.kind == PublishedLoss::Kind::failure && one.by_numerics && one.nearest == recipe;
  });
  return found == all.end() ? nullptr : &*found;
}

std::string known_failure_words(const PublishedLoss& failure) {
  return fmt::format("known to fail{} ({})",
                     failure.parameters ? " at " + token_words(*failure.parameters) : std::string(),
                     failure.source);
}

}  // namespace precbench
