// Checks JSON against a JSON Schema (draft 2020-12), in the subset that record.schema.json uses: type (also a
// list of types), enum, minimum, maximum, required, properties, additionalProperties (true, false or a
// schema), items and $ref into $defs of the same file. A keyword outside that subset and the annotations is
// refused, not ignored.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace precbench {

/// A scalar place of the schema.
struct SchemaField {
  std::string pointer;  ///< "/memory/measured/peak"
  std::string unit;     ///< "bytes"; empty for a text, a truth value and a pure number
};

/// A value that a schema does not allow.
struct SchemaViolation {
  std::string pointer;  ///< RFC 6901; empty for the whole text
  std::string what;     ///< "not a number but a string"

  std::string text() const { return (pointer.empty() ? "/" : pointer) + ": " + what; }
};

class Schema {
 public:
  /// Throws InvalidInput if the text is not JSON or uses a keyword that is not checked here.
  explicit Schema(const std::string& text);
  Schema(const Schema&) = delete;
  Schema& operator=(const Schema&) = delete;

  /// The schema of records, compiled into the binary from results/record.schema.json.
  static const Schema& record();

  /// One line per violation, "/timing/samples_ms/3: not a number but a string", of the first kMostViolations;
  /// empty if the JSON is valid.
  std::vector<std::string> violations(const nlohmann::ordered_json& json) const;
  /// The same with the place apart.
  std::vector<SchemaViolation> find_violations(const nlohmann::ordered_json& json) const;
  static constexpr std::size_t kMostViolations = 1000;

  /// Every scalar of the objects of the schema, in its order; arrays and free keys are left out.
  std::vector<SchemaField> scalar_fields() const;

  const nlohmann::ordered_json& json() const { return root_; }

 private:
  struct Node;   // a part of the schema, in the form in which it is checked fastest
  struct Place;  // of a value in the JSON that is checked

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
