// Serializes parts of a record to bytes that are equal for equal values, to find common parts of records.
#pragma once

#include <string>
#include <type_traits>

#include "results/record_fields.h"

namespace precbench {

template <class T>
void add_bytes(const T& value, std::string& bytes) {
  const auto add_json = [&](const nlohmann::ordered_json& json) {
    add_bytes(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), bytes);
  };
  if constexpr (kIsOptional<T>) {
    bytes += value ? '+' : '-';
    if (value) add_bytes(*value, bytes);
  } else if constexpr (IsVector<T>::value) {
    add_bytes(value.size(), bytes);
    for (const auto& element : value) add_bytes(element, bytes);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    add_bytes(value.size(), bytes);
    bytes += value;
  } else if constexpr (std::is_same_v<T, CaseFields>) {
    add_json(value);
  } else if constexpr (std::is_same_v<T, DefinitionPart>) {
    add_json(value ? *value : nlohmann::ordered_json::object());
  } else {
    each_field(value, [&](const char*, const auto& field) { add_bytes(field, bytes); });
  }
}

template <class T>
std::string bytes_of(const T& value) {
  std::string bytes;
  add_bytes(value, bytes);
  return bytes;
}

}  // namespace precbench
