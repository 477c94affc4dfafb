// The validator of schema.h: one recursive walk, with the JSON pointer of the place carried along.
#include "results/schema.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/errors.h"
#include "results/record_schema_text.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// True when `json` is of the JSON Schema type `type`. As in the standard, 3.0 is an integer.
bool has_type(const Json& json, const std::string& type) {
  if (type == "null") return json.is_null();
  if (type == "boolean") return json.is_boolean();
  if (type == "string") return json.is_string();
  if (type == "array") return json.is_array();
  if (type == "object") return json.is_object();
  if (type == "number") return json.is_number();
  if (json.is_number_integer()) return true;
  return json.is_number_float() && std::floor(json.get<double>()) == json.get<double>();
}

std::string type_of(const Json& json) { return json.is_number_integer() ? "integer" : json.type_name(); }

/// Runs `visit` with `step` appended to the pointer, "~" and "/" escaped as RFC 6901 asks.
template <class Visit>
void descend(std::string& pointer, const std::string& step, Visit&& visit) {
  const std::size_t length = pointer.size();
  pointer += '/';
  for (char c : step) {
    if (c == '~')
      pointer += "~0";
    else if (c == '/')
      pointer += "~1";
    else
      pointer += c;
  }
  visit();
  pointer.resize(length);
}

}  // namespace

Schema::Schema(const std::string& text) {
  try {
    root_ = Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw InvalidInput(std::string("the schema is not JSON: ") + error.what());
  }
  check_keywords(root_, "#");
}

const Schema& Schema::record() {
  static const Schema schema{kRecordSchemaText};
  return schema;
}

void Schema::check_keywords(const Json& schema, const std::string& where) const {
  static const std::set<std::string> known = {"$schema", "title",    "description", "unit",
                                              "$defs",   "type",     "enum",        "minimum",
                                              "maximum", "required", "properties",  "additionalProperties",
                                              "items",   "$ref"};
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
  std::vector<std::string> found;
  std::string pointer;
  check(root_, json, pointer, found);
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

void Schema::check(const Json& unresolved, const Json& json, std::string& pointer,
                   std::vector<std::string>& found) const {
  const Json& schema = resolve(unresolved);
  const auto report = [&](const std::string& what) {
    found.push_back((pointer.empty() ? "/" : pointer) + ": " + what);
  };

  if (const auto type = schema.find("type"); type != schema.end()) {
    bool matches = false;
    std::string wanted;
    for (const Json& one : type->is_array() ? *type : Json::array({*type})) {
      matches = matches || has_type(json, one.get<std::string>());
      wanted += (wanted.empty() ? "" : " or ") + one.get<std::string>();
    }
    if (!matches) return report("not " + wanted + " but " + type_of(json));
  }
  if (const auto allowed = schema.find("enum"); allowed != schema.end())
    if (std::find(allowed->begin(), allowed->end(), json) == allowed->end())
      report(json.dump() + " is not one of " + allowed->dump());
  if (json.is_number()) {
    if (const auto low = schema.find("minimum");
        low != schema.end() && json.get<double>() < low->get<double>())
      report(json.dump() + " is below " + low->dump());
    if (const auto high = schema.find("maximum");
        high != schema.end() && json.get<double>() > high->get<double>())
      report(json.dump() + " is above " + high->dump());
  }
  if (json.is_object()) check_object(schema, json, pointer, found);
  if (const auto items = schema.find("items"); items != schema.end() && json.is_array())
    for (std::size_t i = 0; i < json.size(); ++i)
      descend(pointer, std::to_string(i), [&] { check(*items, json[i], pointer, found); });
}

void Schema::check_object(const Json& schema, const Json& json, std::string& pointer,
                          std::vector<std::string>& found) const {
  if (const auto required = schema.find("required"); required != schema.end())
    for (const Json& key : *required)
      if (!json.contains(key.get<std::string>()))
        descend(pointer, key.get<std::string>(), [&] { found.push_back(pointer + ": missing"); });
  const auto properties = schema.find("properties");
  const auto additional = schema.find("additionalProperties");
  for (const auto& item : json.items()) {
    descend(pointer, item.key(), [&] {
      if (properties != schema.end() && properties->contains(item.key()))
        check(properties->at(item.key()), item.value(), pointer, found);
      else if (additional != schema.end() && additional->is_object())
        check(*additional, item.value(), pointer, found);
      else if (additional != schema.end() && *additional == false)
        found.push_back(pointer + ": unknown key");
    });
  }
}

}  // namespace precbench
