// Rows of a history from records, and as lines of JSON. See history_row.h.
#include "tools/history/history_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>

#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"
#include "results/record/provenance.h"
#include "results/record/statistics.h"
#include "results/record/step_time.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr JsonLimits kRowLimits{.bytes = kMostRowBytes, .depth = 3, .members = 64, .values = 200};
constexpr std::string_view kRowStart = "{\"history\":";
constexpr std::size_t kCommitDigits = 12, kLongestName = 200;
/// Shortest and longest step that is believed, ms, and the largest of the other numbers.
constexpr double kShortestMs = 1e-6, kLongestMs = 1e12, kLargest = 1e18;

/// Returns a number with the digits that a history needs.
double rounded(double value, int digits) {
  return std::strtod(fmt::format("{:.{}g}", value, digits).c_str(), nullptr);
}

OptionalNumber rounded(const std::optional<double>& value, int digits) {
  return value ? OptionalNumber(rounded(*value, digits)) : OptionalNumber();
}

[[noreturn]] void refuse_row(const std::string& key, const char* why) {
  throw InvalidInput(fmt::format("\"{}\" is {}", key, why));
}

std::string text_in(const Json& json, const char* key, bool needed = false) {
  const auto found = json.find(key);
  if (found == json.end()) {
    if (needed) refuse_row(key, "missing");
    return "";
  }
  if (!found->is_string()) refuse_row(key, "not text");
  const auto& text = found->get_ref<const std::string&>();
  if (text.size() > kLongestName || (needed && text.empty())) refuse_row(key, "empty or too long");
  return text;
}

double checked_number(const Json& json, const std::string& key, double low, double high) {
  if (!json.is_number()) refuse_row(key, "not a number");
  const auto value = json.get<double>();
  if (!(value >= low && value <= high)) refuse_row(key, "beyond any run's");
  return value;
}

OptionalNumber number_in(const Json& json, const char* key, double low = 0) {
  const auto found = json.find(key);
  return found == json.end() ? OptionalNumber() : OptionalNumber(checked_number(*found, key, low, kLargest));
}

/// Returns the fields that differ from their defaults, model and recipe first.
std::shared_ptr<const Json> fields_of(const Record& record, const Json& default_case) {
  Json fields = Json::object();
  for (const char* name : {"model", "recipe"})
    if (const Json* value = record.case_fields.find(name)) fields[name] = *value;
  for (const auto& item : record.case_fields.items())
    if (!fields.contains(item.key()) && item.value() != default_case.value(item.key(), Json()) &&
        changes_work(item.key()))
      fields[item.key()] = item.value();
  return std::make_shared<const Json>(std::move(fields));
}

/// Returns the median step; of an imported run the mean of the settled steps, from which its log's speed is computed.
std::optional<double> step_of(const Record& record) {
  if (!record.source) return record.timing->median_ms;
  if (!record.source->tokens_per_step || !record.metrics->tokens_per_s) return std::nullopt;
  return 1e3 * static_cast<double>(*record.source->tokens_per_step) / *record.metrics->tokens_per_s;
}

std::vector<double> ops_of(const Record& record) {
  if (!record.breakdown) return {};
  const Breakdown& b = *record.breakdown;
  std::vector<double> ops = {b.gemm_ms,      b.quantize_ms,  b.attention_ms,     b.norm_elementwise_ms,
                             b.head_loss_ms, b.optimizer_ms, b.communication_ms, b.idle_ms};
  if (b.routing_ms) ops.push_back(*b.routing_ms);
  for (double& ms : ops) ms = rounded(ms, 4);
  return ops;
}

}  // namespace

std::optional<std::int64_t> seconds_of(std::string_view created) {
  static constexpr std::string_view kShape = "0000-00-00T00:00:00Z";
  const bool shaped = created.size() == kShape.size() &&
                      std::equal(created.begin(), created.end(), kShape.begin(), [](char c, char shape) {
                        return shape == '0' ? c >= '0' && c <= '9' : c == shape;
                      });
  if (!shaped) return std::nullopt;
  const auto digits = [&](std::size_t at, std::size_t count) {
    int value = 0;
    for (std::size_t i = at; i < at + count; ++i) value = 10 * value + (created[i] - '0');
    return value;
  };
  const std::chrono::year_month_day date{std::chrono::year(digits(0, 4)),
                                         std::chrono::month(static_cast<unsigned>(digits(5, 2))),
                                         std::chrono::day(static_cast<unsigned>(digits(8, 2)))};
  const int hour = digits(11, 2), minute = digits(14, 2), second = digits(17, 2);
  if (!date.ok() || digits(0, 4) < 1970 || hour > 23 || minute > 59 || second > 60) return std::nullopt;
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return days * 86400 + hour * 3600 + minute * 60 + second;
}

std::optional<HistoryRow> history_row(const Record& record, const Json& default_case) {
  if (record.status != Status::ok || record.study || !record.timing || !record.metrics) return std::nullopt;
  const auto step = step_of(record);
  const auto time = seconds_of(record.created);
  if (!record.metrics->tokens_per_s || !step || !time || !(*step >= kShortestMs && *step <= kLongestMs))
    return std::nullopt;
  HistoryRow row;
  row.id = record.id, row.method = record.method_version;
  row.created = record.created, row.time = *time;
  const Environment& env = record.env;
  row.commit = env.git.value_or("").substr(0, kCommitDigits), row.dirty = env.dirty.value_or(false);
  row.machine = machine_of(env);
  if (env.gpu) row.board = env.gpu->uuid.value_or(""), row.driver = env.gpu->driver.value_or("");
  if (row.board.empty()) row.board = env.host.value_or("");
  row.cuda = env.cuda.value_or(""), row.cublaslt = env.cublaslt.value_or("");
  row.cudnn = env.cudnn.value_or(""), row.nccl = env.nccl.value_or("");
  row.step_ms = rounded(*step, 6);
  row.wall_ms = rounded(record.timing->wall_ms, 6);
  if (record.telemetry)
    row.clock_mhz = rounded(record.telemetry->sm_clock_mhz, 5),
    row.power_w = rounded(record.telemetry->power_w, 4);
  if (record.memory && record.memory->measured)
    row.peak_bytes = static_cast<double>(record.memory->measured->peak);
  if (record.source) {
    row.source = record.source->program.substr(0, kLongestName);
    row.commit = record.source->version.value_or("").substr(0, kLongestName);
    if (record.source->memory_bytes) row.peak_bytes = static_cast<double>(*record.source->memory_bytes);
  }
  // With a time limit a faster program does more steps, which lowers the loss.
  const bool timed = record.case_fields.value("steps", nullptr) == "auto";
  if (record.training && !timed) row.loss = rounded(trailing_mean(record.training->loss), 6);
  row.doubted = !speed_doubts(record).empty();
  row.ops = ops_of(record);
  row.fields = fields_of(record, default_case);
  return row;
}

std::string row_line(const HistoryRow& row) {
  Json json = {{"history", kHistoryVersion}, {"method", row.method}, {"id", row.id}};
  const auto text = [&](const char* key, const std::string& value) {
    if (!value.empty()) json[key] = value;
  };
  const auto number = [&](const char* key, const OptionalNumber& value) {
    if (value) json[key] = *value;
  };
  text("source", row.source), text("created", row.created), text("commit", row.commit);
  if (row.dirty) json["dirty"] = true;
  text("machine", row.machine), text("board", row.board), text("driver", row.driver);
  text("cuda", row.cuda), text("cublaslt", row.cublaslt), text("cudnn", row.cudnn), text("nccl", row.nccl);
  json["ms"] = row.step_ms;
  number("wall_ms", row.wall_ms), number("clock", row.clock_mhz), number("power", row.power_w);
  if (row.peak_bytes) json["peak"] = static_cast<std::int64_t>(*row.peak_bytes);
  number("loss", row.loss);
  if (row.doubted) json["doubted"] = true;
  if (!row.ops.empty()) json["ops"] = row.ops;
  json["case"] = row.fields ? *row.fields : Json::object();
  return json.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

bool is_row_line(std::string_view line) { return line.substr(0, kRowStart.size()) == kRowStart; }

HistoryRow parse_row(const std::string& line) {
  const Json json = parse_untrusted<Json>(line, kRowLimits);
  if (!json.is_object()) throw InvalidInput("not a row of a history");
  const auto whole = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer()) refuse_row(key, "not a whole number");
    return static_cast<int>(checked_number(*found, key, 0, 1e9));
  };
  if (const int version = whole("history"); version != kHistoryVersion)
    throw InvalidInput(
        fmt::format("a row of version {}, and this program reads {}", version, kHistoryVersion));
  HistoryRow row;
  row.method = whole("method");
  row.id = text_in(json, "id", true), row.source = text_in(json, "source");
  row.created = text_in(json, "created", true);
  const auto time = seconds_of(row.created);
  if (!time) refuse_row("created", "no time such as 2026-01-31T09:30:00Z");
  row.time = *time;
  row.commit = text_in(json, "commit");
  row.machine = text_in(json, "machine"), row.board = text_in(json, "board");
  row.driver = text_in(json, "driver"), row.cuda = text_in(json, "cuda"),
  row.cublaslt = text_in(json, "cublaslt");
  row.cudnn = text_in(json, "cudnn"), row.nccl = text_in(json, "nccl");
  const auto flag = [&](const char* key) {
    const auto found = json.find(key);
    if (found != json.end() && !found->is_boolean()) refuse_row(key, "neither true nor false");
    return found != json.end() && found->get<bool>();
  };
  row.dirty = flag("dirty"), row.doubted = flag("doubted");
  if (!json.contains("ms")) refuse_row("ms", "missing");
  row.step_ms = checked_number(json["ms"], "ms", kShortestMs, kLongestMs);
  row.wall_ms = number_in(json, "wall_ms"), row.clock_mhz = number_in(json, "clock");
  row.power_w = number_in(json, "power"), row.peak_bytes = number_in(json, "peak");
  row.loss = number_in(json, "loss", -kLargest);
  if (const auto ops = json.find("ops"); ops != json.end()) {
    if (!ops->is_array() || ops->size() + 1 < std::size(kHistoryOps) || ops->size() > std::size(kHistoryOps))
      refuse_row("ops", "no list of the times of all classes");
    for (const Json& ms : *ops) row.ops.push_back(checked_number(ms, "ops", -kLongestMs, kLongestMs));
  }
  const auto fields = json.find("case");
  if (fields == json.end() || !fields->is_object()) refuse_row("case", "not an object");
  for (const auto& item : fields->items())
    if (item.value().is_structured()) refuse_row("case", "not an object of scalars");
  row.fields = std::make_shared<const Json>(*fields);
  return row;
}

}  // namespace precbench
