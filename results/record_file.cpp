// Files of records: append, repair, read.
#include "results/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string_view>

#include "kernels/errors.h"
#include "results/contradiction.h"
#include "results/schema.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class File {
 public:
  File(const std::string& path, int flags) : descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

[[noreturn]] void cannot(const char* what, const std::string& path, int error) {
  throw InvalidInput(fmt::format("cannot {} {}: {}", what, path, std::strerror(error)));
}

/// Appends `text` whole and durably, or not at all.
void append_text(const std::string& path, const std::string& text) {
  const File file(path, O_WRONLY | O_APPEND | O_CREAT);
  if (file.get() < 0) cannot("write", path, errno);
  const off_t before = ::lseek(file.get(), 0, SEEK_END);
  ssize_t written;
  do written = ::write(file.get(), text.data(), text.size());
  while (written < 0 && errno == EINTR);
  // A short write is a disk that ran full on the way. Pipes and devices cannot be synced (EINVAL) and need
  // not be.
  int error = written < 0 ? errno : 0;
  if (written >= 0 && static_cast<std::size_t>(written) != text.size()) error = ENOSPC;
  if (error == 0 && ::fsync(file.get()) != 0 && errno != EINVAL) error = errno;
  if (error == 0) return;
  // Best effort: where the partial line cannot be taken back, repair_tail deals with it at the next start.
  [[maybe_unused]] const bool restored = before >= 0 && ::ftruncate(file.get(), before) == 0;
  cannot("write", path, error);
}

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || (text << file.rdbuf(), file.bad())) cannot("read", path, errno ? errno : EIO);
  return text.str();
}

bool is_object(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
  return json.is_object();
}

std::vector<std::string> files_of(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) throw InvalidInput(path + ": no such file or folder");
  if (!fs::is_directory(status)) return {path};
  std::vector<std::string> files;
  fs::directory_iterator entries(path, error);
  if (error) throw InvalidInput("cannot read " + path + ": " + error.message());
  for (const fs::directory_entry& entry : entries)
    if (entry.path().extension() == ".jsonl") files.push_back(entry.path().string());
  if (files.empty()) throw InvalidInput(path + ": no record file (*.jsonl) in this folder");
  std::sort(files.begin(), files.end());
  return files;
}

/// The record of a line, or why it is none.
std::optional<Record> parse_record(const std::string& line, std::string& problem) {
  const Json json = Json::parse(line, nullptr, false);
  if (json.is_discarded()) return problem = "not JSON", std::nullopt;
  if (!json.is_object())
    return problem = "not a record but a JSON " + std::string(json.type_name()), std::nullopt;
  const auto schema = json.find("schema");
  if (schema == json.end() || !schema->is_number_integer())
    return problem = "not a record: it has no schema version", std::nullopt;
  if (*schema != kSchemaVersion)
    return problem =
               fmt::format("schema version {}, but this program reads {}", schema->dump(), kSchemaVersion),
           std::nullopt;
  const auto violations = Schema::record().violations(json);
  if (!violations.empty()) {
    problem = "not a valid record: " + violations.front();
    if (violations.size() > 1) problem += fmt::format(" (and {} more)", violations.size() - 1);
    return std::nullopt;
  }
  return json.get<Record>();
}

bool knows_machine(const Environment& env) { return env.gpu || env.cpu; }

/// Gives cases that failed without an environment that of a neighbour: the nearest before, else the first
/// after.
void place_failures(std::span<LocatedRecord> file) {
  for (std::size_t i = 0; i < file.size(); ++i) {
    const Record& record = file[i].record;
    if (record.status == Status::ok || knows_machine(record.env)) continue;
    const auto device = [](const Record& r) { return r.case_fields.value("device", Json()); };
    const auto suits = [&](const LocatedRecord& other) {
      return knows_machine(other.record.env) && device(other.record) == device(record);
    };
    const auto here = file.begin() + static_cast<std::ptrdiff_t>(i);
    const auto before = std::find_if(std::make_reverse_iterator(here), file.rend(), suits);
    const auto after = std::find_if(here, file.end(), suits);
    if (before != file.rend())
      file[i].env = before->record.env;
    else if (after != file.end())
      file[i].env = after->record.env;
  }
}

void read_file_into(RecordSet& set, const std::string& path) {
  const std::string text = read_file(path);
  const std::size_t first = set.records.size();
  std::size_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::string origin = fmt::format("{}:{}", path, ++line_number);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::string problem;
    if (auto record = parse_record(line, problem)) {
      if (const auto why = contradiction(*record))
        set.problems.push_back(fmt::format("{}: contradicts itself: {}", origin, *why));
      set.records.push_back({*record, origin, record->env});
    } else if (end == text.size() && problem == "not JSON") {
      set.problems.push_back(origin + ": half-written last line, left out");
    } else {
      set.problems.push_back(origin + ": " + problem + ", left out");
    }
  }
  place_failures({set.records.begin() + static_cast<std::ptrdiff_t>(first), set.records.end()});
}

/// Whether a's time is known to be before b's. Times as bench writes them, "2025-01-31T12:00:00Z", sort as text.
bool is_older(const Record& a, const Record& b) {
  static constexpr std::string_view kShape = "0000-00-00T00:00:00Z";
  const auto is_time = [](const std::string& text) {
    return text.size() == kShape.size() &&
           std::equal(text.begin(), text.end(), kShape.begin(),
                      [](char c, char shape) { return shape == '0' ? c >= '0' && c <= '9' : c == shape; });
  };
  return is_time(a.created) && is_time(b.created) && a.created < b.created;
}

/// Of the records of one case on one machine, keeps the newest, and of those the last.
void drop_repeated(RecordSet& set) {
  std::map<std::pair<std::string, std::string>, std::size_t> newest;
  const auto winner_of = [&](std::size_t i) -> std::size_t& {
    return newest.try_emplace({set.records[i].record.id, machine_of(set.records[i].env)}, i).first->second;
  };
  for (std::size_t i = 0; i < set.records.size(); ++i)
    if (std::size_t& winner = winner_of(i); !is_older(set.records[i].record, set.records[winner].record))
      winner = i;
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < set.records.size(); ++i) {
    const LocatedRecord& winner = set.records[winner_of(i)];
    if (&winner == &set.records[i]) {
      kept.push_back(i);
      continue;
    }
    const auto& [record, origin, env] = set.records[i];
    std::string which = "the newer one is used";
    if (!is_older(record, winner.record)) {
      which = "the later line is used";
      if (Json(record) != Json(winner.record)) {
        which = "their times do not tell which is newer, so nothing can be said of it; " + which;
        set.undecided.push_back(record.id);
      }
    }
    set.problems.push_back(
        fmt::format("{}: case {} is repeated at {}; {}", origin, record.id, winner.origin, which));
  }
  std::vector<LocatedRecord> records;
  for (const std::size_t i : kept) records.push_back(std::move(set.records[i]));
  set.records = std::move(records);
}

}  // namespace

void append_record(const std::string& path, const Record& record) {
  append_text(path, Json(record).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<std::string> repair_tail(const std::string& path) {
  if (!fs::exists(path)) return std::nullopt;
  const std::string text = read_file(path);
  if (text.empty()) return std::nullopt;
  const bool ended = text.back() == '\n';
  const std::size_t last_end = ended ? text.size() - 1 : text.size();
  const std::size_t newline = last_end == 0 ? std::string::npos : text.rfind('\n', last_end - 1);
  const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
  const std::string line = text.substr(begin, last_end - begin);
  if (is_object(line)) {
    if (ended) return std::nullopt;
    append_text(path, "\n");
    return path + ": the last line had lost its newline; put back";
  }
  append_text(path + ".broken", line + "\n");
  std::error_code error;
  fs::resize_file(path, begin, error);
  if (error) throw InvalidInput("cannot write " + path + ": " + error.message());
  return fmt::format("{}: the last line was only half written; moved to {}.broken", path, path);
}

std::string spare_name(const std::string& path) {
  for (int i = 1;; ++i)
    if (const std::string name = fmt::format("{}.{}", path, i); !fs::exists(name)) return name;
}

RecordSet read_records(const std::vector<std::string>& paths) {
  RecordSet set;
  std::set<fs::path> seen;
  for (const std::string& path : paths) {
    const std::size_t records = set.records.size(), problems = set.problems.size();
    bool read_before = false;
    for (const std::string& file : files_of(path)) {
      if (seen.insert(fs::weakly_canonical(file)).second)
        read_file_into(set, file);
      else
        read_before = true;
    }
    if (set.records.size() == records && !read_before)
      set.without_record.push_back(
          fmt::format("{}: no record in it{}", path,
                      set.problems.size() == problems ? "" : " (" + set.problems[problems] + ")"));
  }
  drop_repeated(set);
  std::set<int> methods;
  for (const LocatedRecord& located : set.records) methods.insert(located.record.method_version);
  if (methods.size() > 1)
    set.problems.push_back(
        fmt::format("records of method versions {} are mixed; they are not compared with each other",
                    fmt::join(methods, ", ")));
  return set;
}

}  // namespace precbench
