// Made-up but plausible records for tests: every field filled, so that a forgotten field shows.
#pragma once

#include <string>
#include <vector>

#include "results/record.h"
#include "results/record_file.h"

namespace precbench::samples {

/// Of llama3.2-1b and a recipe whose operands are all of one format. Every field that a definition may have is there.
DefinitionRecord definition(const std::string& recipe, int seed);

/// Llama-3.2-1B on one H200. `median_ms` is the step time; the loss falls from ln V towards 2.5 + `penalty`.
Record gpu_record(const std::string& recipe, double median_ms, double penalty = 0, int seed = 1);

/// The tiny model on the CPU device; every recipe but bf16 is emulated and has no speed.
Record cpu_record(const std::string& recipe, double penalty = 0, int seed = 1);

/// Gives the record other step times, not interleaved, and what follows from them.
void set_samples(Record& r, const std::vector<double>& samples_ms);

/// Spreads the record over more GPUs, each with the batch of the one, in the same time.
void set_gpus(Record& r, int gpus);

/// A case that left no measurement: only what is known before it ran.
Record failed_record(const std::string& recipe, Status status, const std::string& error);

/// As an earlier version of the program wrote it, without a definition.
Record of_schema_1(Record r);

/// With another value at a place of a part of its definition, "/fprop/a/scale_rounding".
Record redefined(Record r, DefinitionPart DefinitionRecord::*part, const std::string& place,
                 const nlohmann::ordered_json& value);

/// The records as if read from a file "f", one per line.
RecordSet set_of(const std::vector<Record>& records);

}  // namespace precbench::samples
