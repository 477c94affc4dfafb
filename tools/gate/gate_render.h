// The gate's result as text: for a terminal, for a job summary, for CI systems, for programs.
#pragma once

#include <functional>
#include <string>

#include "tools/gate/gate.h"

namespace precbench {

/// The command that runs a case again, from its fields.
using RerunCommand = std::function<std::string(const nlohmann::ordered_json& fields)>;

/// "precbench run --model tiny ...": every field as a flag, but for names that no flag has. A program that knows the
/// defaults leaves those out.
std::string rerun_with_all_flags(const nlohmann::ordered_json& fields);

/// A summary, a table of all cases, the failing ones with their reasons, the notes; then the commands that
/// run the failing cases again, each whole on its line.
std::string gate_term(const GateResult& result, const std::string& baseline, const RerunCommand& rerun);
std::string gate_markdown(const GateResult& result, const std::string& baseline, const RerunCommand& rerun);

/// "2 of 8 cases: 1 SLOWER, 1 MISSING"
std::string gate_summary(const GateResult& result);

/// JUnit XML: a test case per case; a regression is a failure, what is inconclusive an error.
std::string gate_junit(const GateResult& result, const RerunCommand& rerun);

/// GitHub workflow commands, one line for each case that did not pass: ::error for a regression, else
/// ::warning.
std::string gate_annotations(const GateResult& result, const RerunCommand& rerun);

/// {baseline, exit, summary, cases: [{id, case, label, verdict, rerun, metrics: [...]}], notes}. Null where
/// unknown.
nlohmann::ordered_json gate_json(const GateResult& result, const std::string& baseline,
                                 const RerunCommand& rerun);

}  // namespace precbench
