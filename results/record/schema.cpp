// Validator: one recursive walk that tracks the position of each value. See schema.h.
#include "results/record/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <unordered_map>

#include "kernels/base/errors.h"
#include "results/record/record_schema_text.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Kinds of JSON values for a schema's type. A number without a fraction counts as an integer.
enum Kind : unsigned {
  kNull = 1,
  kBoolean = 2,
  kString = 4,
  kArray = 8,
  kObject = 16,
  kFraction = 32,
  kInteger = 64
};

unsigned kinds_of(const std::string& type) {
  if (type == "null") return kNull;
  if (type == "boolean") return kBoolean;
  if (type == "string") return kString;
  if (type == "array") return kArray;
  if (type == "object") return kObject;
  return type == "number" ? kFraction | kInteger : kInteger;
}

unsigned kind_of(const Json& json) {
  if (json.is_number_float())
    return std::floor(json.get<double>()) == json.get<double>() ? kInteger : kFraction;
  if (json.is_number()) return kInteger;
  if (json.is_null()) return kNull;
  if (json.is_boolean()) return kBoolean;
  if (json.is_string()) return kString;
  return json.is_array() ? kArray : kObject;
}

std::string type_of(const Json& json) { return json.is_number_integer() ? "integer" : json.type_name(); }

/// Escapes "~" and "/" according to RFC 6901.
std::string escaped(const std::string& key) {
  std::string text;
  for (char c : key) text += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return text;
}

}  // namespace

struct Schema::Place {
  const Place* above = nullptr;
  const std::string* key = nullptr;  ///< key in an object; null in an array
  std::size_t index = 0;

  std::string pointer() const {
    return above ? above->pointer() + '/' + (key ? escaped(*key) : std::to_string(index)) : "";
  }
};

struct Schema::Node {
  std::optional<unsigned> kinds;
  std::string wanted;  ///< text of the kinds
  const Json* allowed = nullptr;
  std::optional<double> low, high;
  std::vector<std::string> required;
  std::unordered_map<std::string, const Node*> properties;
  const Node *items = nullptr, *additional = nullptr;
  std::optional<std::size_t> max_items;
  bool closed = false;  ///< no keys besides the properties

  void check(const Json& json, const Place& place, std::vector<SchemaViolation>& found) const;
  void check_object(const Json& json, const Place& place, std::vector<SchemaViolation>& found) const;
};

Schema::Schema(const std::string& text) {
  try {
    root_ = Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw InvalidInput(std::string("the schema is not JSON: ") + error.what());
  }
  check_keywords(root_, "#");
  compiled_ = &compile(root_);
}

const Schema& Schema::record() {
  static const Schema schema{kRecordSchemaText};
  return schema;
}

void Schema::check_keywords(const Json& schema, const std::string& where) const {
  static const std::set<std::string> known = {"$schema", "title",    "description", "unit",
                                              "$defs",   "type",     "enum",        "minimum",
                                              "maximum", "required", "properties",  "additionalProperties",
                                              "items",   "maxItems", "$ref"};
  if (!schema.is_object()) throw InvalidInput(where + ": not a schema object");
  for (const auto& [key, value] : schema.items()) {
    if (!known.count(key)) throw InvalidInput(where + ": schema keyword " + key + " is not supported");
    if (key == "$defs" || key == "properties")
      for (const auto& [name, part] : value.items()) check_keywords(part, where + "/" + key + "/" + name);
    if (key == "items" || (key == "additionalProperties" && !value.is_boolean()))
      check_keywords(value, where + "/" + key);
    if (key == "$ref") resolve(schema);
  }
}

const Json& Schema::resolve(const Json& schema) const {
  const auto ref = schema.find("$ref");
  if (ref == schema.end()) return schema;
  const std::string name = ref->get<std::string>();
  if (name.rfind("#/", 0) != 0 || !root_.contains(Json::json_pointer(name.substr(1))))
    throw InvalidInput("$ref " + name + " does not exist");
  return root_.at(Json::json_pointer(name.substr(1)));
}

std::vector<std::string> Schema::violations(const Json& json) const {
  std::vector<std::string> lines;
  for (const SchemaViolation& violation : find_violations(json)) lines.push_back(violation.text());
  return lines;
}

std::vector<SchemaViolation> Schema::find_violations(const Json& json) const {
  std::vector<SchemaViolation> found;
  compiled_->check(json, Place{}, found);
  return found;
}

std::vector<SchemaField> Schema::scalar_fields() const {
  std::vector<SchemaField> fields;
  collect(root_, "", fields);
  return fields;
}

void Schema::collect(const Json& unresolved, const std::string& pointer,
                     std::vector<SchemaField>& fields) const {
  const Json& schema = resolve(unresolved);
  if (const auto properties = schema.find("properties"); properties != schema.end()) {
    for (const auto& item : properties->items()) collect(item.value(), pointer + "/" + item.key(), fields);
  } else if (!schema.contains("items")) {
    const std::string unit = schema.value("unit", "");
    fields.push_back({pointer, unit == "1" ? "" : unit});
  }
}

const Schema::Node& Schema::compile(const Json& unresolved) {
  const Json& schema = resolve(unresolved);
  std::shared_ptr<Node>& known = nodes_[&schema];
  if (known) return *known;
  known = std::make_shared<Node>();
  Node& node = *known;
  if (const auto type = schema.find("type"); type != schema.end()) {
    node.kinds = 0;
    for (const Json& one : type->is_array() ? *type : Json::array({*type})) {
      *node.kinds |= kinds_of(one.get<std::string>());
      node.wanted += (node.wanted.empty() ? "" : " or ") + one.get<std::string>();
    }
  }
  if (const auto allowed = schema.find("enum"); allowed != schema.end()) node.allowed = &*allowed;
  if (const auto low = schema.find("minimum"); low != schema.end()) node.low = low->get<double>();
  if (const auto high = schema.find("maximum"); high != schema.end()) node.high = high->get<double>();
  if (const auto keys = schema.find("required"); keys != schema.end())
    node.required = keys->get<std::vector<std::string>>();
  if (const auto properties = schema.find("properties"); properties != schema.end())
    for (const auto& item : properties->items()) node.properties[item.key()] = &compile(item.value());
  if (const auto additional = schema.find("additionalProperties"); additional != schema.end()) {
    if (additional->is_object()) node.additional = &compile(*additional);
    node.closed = *additional == false;
  }
  if (const auto items = schema.find("items"); items != schema.end()) node.items = &compile(*items);
  if (const auto limit = schema.find("maxItems"); limit != schema.end())
    node.max_items = limit->get<std::size_t>();
  return node;
}

void Schema::Node::check(const Json& json, const Place& place, std::vector<SchemaViolation>& found) const {
  if (found.size() >= kMostViolations) return;
  const auto report = [&](const std::string& what) { found.push_back({place.pointer(), what}); };
  if (kinds && !(*kinds & kind_of(json))) return report("not " + wanted + " but " + type_of(json));
  if (allowed && std::find(allowed->begin(), allowed->end(), json) == allowed->end())
    report(json.dump() + " is not one of " + allowed->dump());
  if (json.is_number() && (low || high)) {
    const double number = json.get<double>();
    if (low && number < *low) report(json.dump() + " is below " + fmt::format("{}", *low));
    if (high && number > *high) report(json.dump() + " is above " + fmt::format("{}", *high));
  }
  if (max_items && json.is_array() && json.size() > *max_items)
    report(fmt::format("more than {} items", *max_items));
  if (json.is_object()) check_object(json, place, found);
  if (items && json.is_array())
    for (std::size_t i = 0; i < json.size(); ++i) items->check(json[i], {&place, nullptr, i}, found);
}

void Schema::Node::check_object(const Json& json, const Place& place,
                                std::vector<SchemaViolation>& found) const {
  for (const std::string& key : required)
    if (found.size() < kMostViolations && !json.contains(key))
      found.push_back({Place{&place, &key}.pointer(), "missing"});
  for (const auto& item : json.items()) {
    if (found.size() >= kMostViolations) return;
    const Place here{&place, &item.key()};
    if (const auto property = properties.find(item.key()); property != properties.end())
      property->second->check(item.value(), here, found);
    else if (additional)
      additional->check(item.value(), here, found);
    else if (closed)
      found.push_back({here.pointer(), "unknown key"});
  }
}

}  // namespace precbench
