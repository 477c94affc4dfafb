// Shared case fields. See case_fields.h.
#include "results/record/case_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

using Json = CaseFields::Json;

/// More than the axes of any sweep.
constexpr std::size_t kMostOwn = 8;

std::size_t place_of(const Json::object_t& object, std::string_view key) {
  const auto found =
      std::find_if(object.begin(), object.end(), [&](const auto& field) { return field.first == key; });
  return static_cast<std::size_t>(found - object.begin());
}

/// Returns true if both are also written alike: 1 equals 1.0, and 0.0 equals -0.0.
bool same(const Json& a, const Json& b) {
  if (a.type() != b.type() || a != b) return false;
  return !a.is_number_float() || std::signbit(a.get<double>()) == std::signbit(b.get<double>());
}

}  // namespace

CaseFields::CaseFields(Json object) {
  if (!object.is_object()) throw InvalidInput(std::string("not an object but ") + object.type_name());
  if (!object.empty()) shared_ = std::make_shared<const Json>(std::move(object));
}

const Json::object_t& CaseFields::shared() const {
  static const Json kNone = Json::object();
  return (shared_ ? *shared_ : kNone).get_ref<const Json::object_t&>();
}

const Json& CaseFields::value_at(std::size_t place) const {
  for (const Own& own : own_)
    if (own.place == place) return own.value;
  return shared().data()[place].second;
}

std::vector<CaseFields::Item> CaseFields::items() const {
  std::vector<Item> items;
  items.reserve(shared().size());
  for (const auto& [key, value] : shared()) items.emplace_back(key, value);
  for (const Own& own : own_) items[own.place] = Item(items[own.place].key(), own.value);
  return items;
}

const Json* CaseFields::find(std::string_view key) const {
  const std::size_t place = place_of(shared(), key);
  return place == shared().size() ? nullptr : &value_at(place);
}

Json CaseFields::value(std::string_view key, Json otherwise) const {
  const Json* found = find(key);
  return found ? *found : otherwise;
}

const Json& CaseFields::at(std::string_view key) const {
  const Json* found = find(key);
  if (!found) throw InvalidInput("no field " + std::string(key));
  return *found;
}

Json& CaseFields::operator[](std::string_view key) {
  const std::size_t place = place_of(shared(), key);
  if (place == shared().size()) {
    Json object(*this);
    object[std::string(key)] = nullptr;
    *this = CaseFields(std::move(object));
  }
  for (Own& own : own_)
    if (own.place == place) return own.value;
  return own_.emplace_back(Own{static_cast<std::uint32_t>(place), shared().data()[place].second}).value;
}

void CaseFields::erase(std::string_view key) {
  Json object(*this);
  object.erase(std::string(key));
  *this = CaseFields(std::move(object));
}

bool CaseFields::share_with(const CaseFields& other) {
  const Json::object_t &mine = shared(), &theirs = other.shared();
  if (mine.size() != theirs.size()) return false;
  std::vector<Own> own;
  for (std::size_t place = 0; place < mine.size(); ++place) {
    if (mine.data()[place].first != theirs.data()[place].first) return false;
    const Json& value = value_at(place);
    if (same(value, theirs.data()[place].second)) continue;
    if (own.size() == kMostOwn) return false;
    own.push_back({static_cast<std::uint32_t>(place), value});
  }
  own.shrink_to_fit();
  own_ = std::move(own);
  shared_ = other.shared_;
  return true;
}

CaseFieldsChange::Changed CaseFieldsChange::changed(const CaseFields& fields) const {
  Changed changed;
  Json object = Json::object();
  std::uint32_t kept = 0;
  for (const auto& [key, value] : fields.shared()) {
    auto other = rule_(key, value);
    changed.places.push_back(other ? kept++ : kLeftOut);
    if (other) object.get_ref<Json::object_t&>().push_back({key, std::move(*other)});
  }
  if (kept > 0) changed.object = std::make_shared<const Json>(std::move(object));
  return changed;
}

void CaseFieldsChange::prepare(const CaseFields& fields) {
  if (!changed_.contains(fields.shared_)) changed_.emplace(fields.shared_, changed(fields));
}

CaseFields CaseFieldsChange::of(const CaseFields& fields) const {
  const auto prepared = changed_.find(fields.shared_);
  const Changed own = prepared == changed_.end() ? changed(fields) : Changed();
  const Changed& shared = prepared == changed_.end() ? own : prepared->second;
  CaseFields result;
  result.shared_ = shared.object;
  for (const auto& [place, value] : fields.own_)
    if (shared.places[place] != kLeftOut)
      result.own_.push_back({shared.places[place], *rule_(fields.shared().data()[place].first, value)});
  return result;
}

void to_json(Json& json, const CaseFields& fields) {
  json = fields.shared_ ? *fields.shared_ : Json::object();
  auto& object = json.get_ref<Json::object_t&>();
  for (const CaseFields::Own& own : fields.own_) object.data()[own.place].second = own.value;
}

}  // namespace precbench
