// Plausible artificial records for tests. Every field is filled, so that a forgotten field is noticed.
#pragma once

#include <string>
#include <vector>

#include "results/record/record.h"
#include "results/record/record_file.h"

namespace precbench::samples {

/// Returns the definition of llama3.2-1b and a recipe with one format for all operands, with every possible
/// field.
DefinitionRecord definition(const std::string& recipe, int seed);

/// Returns Llama-3.2-1B on one H200. `median_ms` is the step time; the loss falls from ln V towards 2.5 +
/// `penalty`.
Record gpu_record(const std::string& recipe, double median_ms, double penalty = 0, int seed = 1);

/// Returns the tiny model on the CPU device. Every recipe except bf16 is emulated and has no speed.
Record cpu_record(const std::string& recipe, double penalty = 0, int seed = 1);

/// Returns a run of llama3.1-8b on eight H200 as imported from a torchtitan log: five lines of ten steps each.
Record imported_record(const std::string& recipe, double mean_ms, int seed = 1);

/// Replaces the step times by non-interleaved ones and updates everything derived from them.
void set_samples(Record& r, const std::vector<double>& samples_ms);

/// Spreads the record over more GPUs, each with the original batch, at the same step time.
void set_gpus(Record& r, int gpus);

/// Returns a case without measurements, with only what is known before it ran.
Record failed_record(const std::string& recipe, Status status, const std::string& error);

/// Returns the record as an earlier version of the program wrote it, without a definition.
Record of_schema_1(Record r);

/// Returns the record with another value at `place` in a part of its definition, e.g.
/// "/fprop/a/scale_rounding".
Record redefined(Record r, DefinitionPart DefinitionRecord::*part, const std::string& place,
                 const nlohmann::ordered_json& value);

/// Returns the records as if read from a file "f", one per line.
RecordSet set_of(const std::vector<Record>& records);

}  // namespace precbench::samples
