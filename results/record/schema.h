// Validates JSON against a JSON Schema (draft 2020-12), in the subset that record.schema.json uses: type
// (also a list of types), enum, minimum, maximum, required, properties, additionalProperties (true, false or
// a schema), items and $ref into $defs of the same file. Keywords outside this subset and the annotations are
// refused, not ignored.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace precbench {

/// A scalar field of the schema.
struct SchemaField {
  std::string pointer;  ///< "/memory/measured/peak"
  std::string unit;     ///< "bytes"; empty for strings, booleans and dimensionless numbers
};

/// A value that the schema does not allow.
struct SchemaViolation {
  std::string pointer;  ///< RFC 6901; empty for the whole text
  std::string what;     ///< "not a number but a string"

  std::string text() const { return (pointer.empty() ? "/" : pointer) + ": " + what; }
};

class Schema {
 public:
  /// Throws InvalidInput if the text is not JSON or uses an unsupported keyword.
  explicit Schema(const std::string& text);
  Schema(const Schema&) = delete;
  Schema& operator=(const Schema&) = delete;

  /// Returns the schema of records, compiled into the binary from results/record.schema.json.
  static const Schema& record();

  /// Returns one line for each of the first kMostViolations violations, "/timing/samples_ms/3: not a number
  /// but a string"; empty if the JSON is valid.
  std::vector<std::string> violations(const nlohmann::ordered_json& json) const;
  /// Returns the same with separate pointers.
  std::vector<SchemaViolation> find_violations(const nlohmann::ordered_json& json) const;
  static constexpr std::size_t kMostViolations = 1000;

  /// Returns every scalar of the schema's objects, in its order, without arrays and free keys.
  std::vector<SchemaField> scalar_fields() const;

  const nlohmann::ordered_json& json() const { return root_; }

 private:
  struct Node;   // a part of the schema, compiled for fast checking
  struct Place;  // position of a value in the checked JSON

  void check_keywords(const nlohmann::ordered_json& schema, const std::string& where) const;
  const Node& compile(const nlohmann::ordered_json& schema);
  void collect(const nlohmann::ordered_json& schema, const std::string& pointer,
               std::vector<SchemaField>& fields) const;
  const nlohmann::ordered_json& resolve(const nlohmann::ordered_json& schema) const;

  nlohmann::ordered_json root_;
  std::map<const nlohmann::ordered_json*, std::shared_ptr<Node>> nodes_;
  const Node* compiled_ = nullptr;
};

}  // namespace precbench
