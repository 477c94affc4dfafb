// The fields of a case: about forty, of which the cases of a sweep differ in a few. Hundreds of thousands of
// records are read at once, so equal fields are stored once.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace precbench {

/// A JSON object of scalars that keeps its order. Copies share the fields; a changed field belongs to the
/// copy alone.
class CaseFields {
 public:
  using Json = nlohmann::ordered_json;

  /// A reference to a field, valid while the fields exist unchanged.
  class Item {
   public:
    Item(const std::string& key, const Json& value) : key_(&key), value_(&value) {}
    const std::string& key() const { return *key_; }
    const Json& value() const { return *value_; }

   private:
    const std::string* key_;
    const Json* value_;
  };

  CaseFields() = default;
  /// Throws InvalidInput if `object` is not an object.
  CaseFields(Json object);

  std::vector<Item> items() const;
  /// Returns the field, or null if it does not exist.
  const Json* find(std::string_view key) const;
  Json value(std::string_view key, Json otherwise) const;
  /// Returns the field. Throws InvalidInput if it does not exist.
  const Json& at(std::string_view key) const;
  const Json& operator[](std::string_view key) const { return at(key); }

  /// Returns the field; a new one is null and the last.
  Json& operator[](std::string_view key);
  void erase(std::string_view key);

  /// Shares all equal fields with `other` and keeps only the differing ones. Returns false and changes
  /// nothing if the keys differ or more than a few values do.
  bool share_with(const CaseFields& other);

  friend void to_json(Json& json, const CaseFields& fields);
  friend bool operator==(const CaseFields& a, const CaseFields& b) { return Json(a) == Json(b); }

 private:
  friend class CaseFieldsChange;

  struct Own {
    std::uint32_t place;  ///< position in the shared object
    Json value;
  };
  const Json::object_t& shared() const;
  const Json& value_at(std::size_t place) const;

  std::shared_ptr<const Json> shared_;  ///< null: no fields
  std::vector<Own> own_;                ///< override shared ones
};

/// Rewrites the fields of many cases by a rule. Shared fields are rewritten once and stay shared.
class CaseFieldsChange {
 public:
  /// Returns the new value of a field; nullopt to omit it, which must not depend on its value.
  using Rule = std::optional<CaseFields::Json> (*)(const std::string& key, const CaseFields::Json& value);

  explicit CaseFieldsChange(Rule rule) : rule_(rule) {}

  /// Rewrites the fields shared with these once, for all that share them.
  void prepare(const CaseFields& fields);
  CaseFields of(const CaseFields& fields) const;

 private:
  static constexpr auto kLeftOut = static_cast<std::uint32_t>(-1);
  using Object = std::shared_ptr<const CaseFields::Json>;
  struct Changed {
    Object object;
    std::vector<std::uint32_t> places;  ///< new position of each shared field
  };
  Changed changed(const CaseFields& fields) const;

  Rule rule_;
  std::unordered_map<Object, Changed> changed_;
};

}  // namespace precbench
