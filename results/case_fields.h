// The fields of a case: some forty, of which the cases of a sweep differ in a few. Records are read by the hundred
// thousand, so those that are alike hold them once.
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

/// Used as a JSON object of scalars, whose order it keeps. Copies share the fields, and a field that is changed is the
/// copy's own.
class CaseFields {
 public:
  using Json = nlohmann::ordered_json;

  /// Refers into the fields, which must outlive it unchanged.
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
  /// Throws InvalidInput if it is no object.
  CaseFields(Json object);

  std::vector<Item> items() const;
  /// Null where there is no such field.
  const Json* find(std::string_view key) const;
  Json value(std::string_view key, Json otherwise) const;
  /// Throws InvalidInput where there is no such field.
  const Json& at(std::string_view key) const;
  const Json& operator[](std::string_view key) const { return at(key); }

  /// A new field is null, and the last.
  Json& operator[](std::string_view key);
  void erase(std::string_view key);

  /// Keeps only those fields for itself in which it differs from `other`. False, and nothing is changed, where they
  /// have other keys or differ in more than a few.
  bool share_with(const CaseFields& other);

  friend void to_json(Json& json, const CaseFields& fields);
  friend bool operator==(const CaseFields& a, const CaseFields& b) { return Json(a) == Json(b); }

 private:
  friend class CaseFieldsChange;

  struct Own {
    std::uint32_t place;  ///< in the shared object
    Json value;
  };
  const Json::object_t& shared() const;
  const Json& value_at(std::size_t place) const;

  std::shared_ptr<const Json> shared_;  ///< null: no fields
  std::vector<Own> own_;                ///< in place of shared ones
};

/// The fields of many cases by other rules; what cases share is changed once, and is shared again.
class CaseFieldsChange {
 public:
  /// What a field becomes; nothing where it is left out, for which its value must not matter.
  using Rule = std::optional<CaseFields::Json> (*)(const std::string& key, const CaseFields::Json& value);

  explicit CaseFieldsChange(Rule rule) : rule_(rule) {}

  /// Lets the changed fields of all that share with these share as well.
  void prepare(const CaseFields& fields);
  CaseFields of(const CaseFields& fields) const;

 private:
  static constexpr auto kLeftOut = static_cast<std::uint32_t>(-1);
  using Object = std::shared_ptr<const CaseFields::Json>;
  struct Changed {
    Object object;
    std::vector<std::uint32_t> places;  ///< by those of the shared object
  };
  Changed changed(const CaseFields& fields) const;

  Rule rule_;
  std::unordered_map<Object, Changed> changed_;
};

}  // namespace precbench
