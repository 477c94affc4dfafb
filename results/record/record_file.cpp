// Appends, repairs and reads record files.
#include "results/record/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "results/record/compressed.h"
#include "results/record/field_index.h"
#include "results/record/line_reader.h"
#include "results/record/parallel.h"
#include "results/record/readable_record.h"
#include "results/record/record_folder.h"
#include "results/record/same_run.h"

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

/// Bytes parsed in one round, and bytes that justify a thread.
constexpr std::size_t kRoundBytes = std::size_t{4} << 20, kThreadBytes = std::size_t{1} << 17;
/// Longer lines are parsed one at a time, because their parsed forms together could exceed memory.
constexpr std::size_t kLongLine = std::size_t{1} << 20;
/// Maximum length of a reported problem; a line may contain any amount of text.
constexpr std::size_t kMostLetters = 400;
constexpr const char* kLeftOut = ", left out";

[[noreturn]] void cannot(const char* what, const std::string& path, int error) {
  throw InvalidInput(fmt::format("cannot {} {}: {}", what, path, error_text(error)));
}

/// Appends `text` completely and durably, or not at all.
void append_text(const std::string& path, const std::string& text) {
  const File file(path, O_WRONLY | O_APPEND | O_CREAT);
  if (file.get() < 0) cannot("write", path, errno);
  const off_t before = ::lseek(file.get(), 0, SEEK_END);
  int error = 0;
  // A short write means that the disk is full or a file's largest size is reached: the next one says which.
  for (std::size_t done = 0; error == 0 && done < text.size();) {
    const ssize_t written = ::write(file.get(), text.data() + done, text.size() - done);
    if (written > 0) done += static_cast<std::size_t>(written);
    if (written == 0) error = ENOSPC;
    if (written < 0 && errno != EINTR) error = errno;
  }
  // Pipes and devices cannot be synced (EINVAL) and need not be.
  if (error == 0 && ::fsync(file.get()) != 0 && errno != EINVAL) error = errno;
  if (error == 0) return;
  // Best effort: if the partial line cannot be removed, repair_tail handles it at the next start.
  [[maybe_unused]] const bool restored = before >= 0 && ::ftruncate(file.get(), before) == 0;
  cannot("write", path, error);
}

bool begins_an_object(const std::string& line) {
  const std::size_t first = line.find_first_not_of(" \t\r");
  return first != std::string::npos && line[first] == '{';
}

/// Returns true if the line is a complete JSON object of any size, without building it.
bool is_object(const std::string& line) { return begins_an_object(line) && Json::accept(line); }

std::vector<std::string> files_of(const std::string& path) {
  if (named_descriptor(path)) return {path};
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) throw InvalidInput(path + ": no such file or folder");
  if (!fs::is_directory(status)) return {path};
  std::vector<std::string> files = record_files_in(path);
  if (files.empty())
    throw InvalidInput(path +
                       ": no record file (*.jsonl, *.jsonl.xz) in this folder or in the folders in it");
  return files;
}

/// Returns a path that is equal for two names of one file or descriptor.
fs::path identity_of(const std::string& path) {
  const auto descriptor = named_descriptor(path);
  if (!descriptor) return fs::weakly_canonical(path);
  const fs::path link = fmt::format("/proc/self/fd/{}", *descriptor);
  std::error_code error;  // for a pipe, whose link has no path
  const fs::path file = fs::canonical(link, error);
  return error ? link : file;
}

bool knows_machine(const Environment& env) { return env.gpu || env.cpu; }

/// Assigns cases that failed without an environment that of a neighbour: the nearest previous one, else the
/// first following one.
void place_failures(std::span<LocatedRecord> file) {
  const auto device = [](const LocatedRecord& located) {
    return located.record.case_fields.value("device", Json())
        .dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::map<std::string, const Environment*> near;  // by device, of the visited records
  const auto visit = [&](LocatedRecord& located) {
    const Record& record = located.record;
    if (knows_machine(record.env)) return void(near[device(located)] = &record.env);
    if (record.status == Status::ok || located.neighbour) return;
    if (const auto found = near.find(device(located)); found != near.end())
      located.neighbour = std::make_shared<const Environment>(*found->second);
  };
  std::for_each(file.begin(), file.end(), visit);
  near.clear();
  std::for_each(file.rbegin(), file.rend(), visit);
}

/// Returns true if a's time is known to be earlier than b's. Times written by bench, "2025-01-31T12:00:00Z",
/// sort as text.
bool is_older(const Record& a, const Record& b) {
  static constexpr std::string_view kShape = "0000-00-00T00:00:00Z";
  const auto is_time = [](const std::string& text) {
    return text.size() == kShape.size() &&
           std::equal(text.begin(), text.end(), kShape.begin(),
                      [](char c, char shape) { return shape == '0' ? c >= '0' && c <= '9' : c == shape; });
  };
  return is_time(a.created) && is_time(b.created) && a.created < b.created;
}

/// Returns true if `a` is known to be of an earlier or another run than `newest`, a record of the same case.
bool is_repeat(const Record& a, const Record& newest) {
  return a.source && newest.source ? !same_run(a, newest) : is_older(a, newest);
}

/// Returns text that differs between runs of one case.
std::string run_text(const Record& record) {
  return record.source ? fmt::format("{} {}", record.source->file_sha256, record.source->run)
                       : record.created;
}

/// Reads files into a set.
class Reader {
 public:
  Reader(ReduceRecord reduce, Repeats repeats) : reduce_(reduce), repeats_(repeats) {}
  void read(const std::string& path);
  RecordSet finish();

  RecordSet set;

 private:
  struct Line {
    std::string text;  ///< only the first bytes of a line that is too long
    std::size_t bytes, number;
    bool ended;
  };

  /// `outcome`: appended to the problem; what was done about it.
  void add_problem(std::string text, const std::string& outcome = "");
  bool has_room_for(const CaseFields& fields);
  void share_parts(Record& record);
  void parse(const std::string& path, const std::vector<Line>& lines);
  void add(const std::string& path, const Line& line, RecordLine parsed);
  void unite_problems(std::size_t first, std::size_t lines);
  std::vector<std::uint32_t> newest_of_each() const;
  void drop_repeated();
  void drop_superseded();
  void keep(const std::vector<bool>& kept);

  ReduceRecord reduce_;
  Repeats repeats_;
  CaseFields like_;                                        ///< of a recent record, for others to share
  std::unordered_map<std::string, DefinitionPart> parts_;  ///< by their text, for others to share
  std::set<std::string> case_fields_;
  std::vector<std::size_t> hashes_;  ///< of each record, before it was reduced
  std::size_t not_named_ = 0;
};

void Reader::add_problem(std::string text, const std::string& outcome) {
  if (set.problems.size() == kMostProblems) return void(++not_named_);
  if (text.size() > kMostLetters) text = text.substr(0, kMostLetters) + "...";
  if (set.problems.empty()) set.first_problem = text;
  text += outcome;
  set.problems.push_back(std::move(text));
}

bool Reader::has_room_for(const CaseFields& fields) {
  std::size_t added = 0;
  const auto items = fields.items();
  for (const auto& item : items) added += case_fields_.contains(item.key()) ? 0 : 1;
  if (case_fields_.size() + added > kMostCaseFields) return false;
  if (added > 0)
    for (const auto& item : items) case_fields_.insert(item.key());
  return true;
}

/// Lets the record share case fields and equal parts of its definition with earlier records.
void Reader::share_parts(Record& record) {
  if (!record.case_fields.share_with(like_)) like_ = record.case_fields;
  if (!record.definition) return;
  auto& [model, recipe, data, init] = *record.definition;
  for (DefinitionPart* part : {&model, &recipe, &data, &init})
    *part = parts_.try_emplace((*part)->dump(), *part).first->second;
}

/// Adds the contents of a line to the set.
void Reader::add(const std::string& path, const Line& line, RecordLine parsed) {
  const Origin origin{path, line.number};
  if (parsed.failure) std::rethrow_exception(parsed.failure);
  if (parsed.record && !has_room_for(parsed.record->case_fields)) {
    parsed.record.reset();
    parsed.problem = fmt::format("more than {} different case fields in these records", kMostCaseFields);
  }
  if (parsed.record) {
    if (parsed.contradiction)
      add_problem(fmt::format("{}: contradicts itself: {}", origin.text(), *parsed.contradiction));
    share_parts(*parsed.record);
    set.records.push_back({std::move(*parsed.record), origin});
    hashes_.push_back(parsed.hash);
  } else if (line.bytes > kRecordLimits.bytes) {
    add_problem(
        fmt::format("{}: {} bytes, and at most {} are read", origin.text(), line.bytes, kRecordLimits.bytes),
        kLeftOut);
  } else if (const std::string_view unpacker = unpacker_of(line.text);
             line.number == 1 && !unpacker.empty()) {
    add_problem(fmt::format("{}: compressed; unpack it first: {} -dc", path, unpacker), kLeftOut);
  } else if (!line.ended && parsed.problem == kNotJson && begins_an_object(line.text)) {
    add_problem(origin.text() + ": half-written last line", kLeftOut);
  } else {
    add_problem(origin.text() + ": " + parsed.problem, kLeftOut);
  }
}

/// Parses the lines in parallel and adds their contents in order.
void Reader::parse(const std::string& path, const std::vector<Line>& lines) {
  std::vector<RecordLine> parsed(lines.size());
  std::size_t bytes = 0;
  for (const Line& line : lines) bytes += line.text.size();
  for_each_index(lines.size(), 1 + bytes / kThreadBytes, [&](std::size_t i) {
    if (lines[i].bytes <= kLongLine) parsed[i] = parse_record_line(lines[i].text, reduce_);
  });
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].bytes > kLongLine && lines[i].bytes <= kRecordLimits.bytes)
      parsed[i] = parse_record_line(lines[i].text, reduce_);
    add(path, lines[i], std::move(parsed[i]));
  }
}

/// Replaces the problems of a file without a record, from `first` on, by one line: each of its lines has one.
void Reader::unite_problems(std::size_t first, std::size_t lines) {
  if (lines < 2) return;
  if (first >= set.problems.size()) return void(++not_named_);
  const std::string one = set.problems[first];
  set.problems.resize(first);
  set.problems.push_back(fmt::format("{}, as are all {} lines of the file", one, lines));
}

void Reader::read(const std::string& path) {
  const std::size_t first = set.records.size(), problems = set.problems.size(), not_named = not_named_;
  const std::string file = input_name(path);
  LineReader reader(path, kRecordLimits.bytes);
  std::vector<Line> round;
  std::size_t bytes = 0, lines = 0;
  while (reader.next()) {
    const std::string& line = reader.line();
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ++lines;
    round.push_back({line, reader.bytes(), reader.number(), reader.ended()});
    bytes += line.size() + sizeof(Line);
    if (bytes < kRoundBytes) continue;
    parse(file, round);
    round.clear();
    bytes = 0;
  }
  parse(file, round);
  if (set.records.size() == first) {
    not_named_ = not_named;
    unite_problems(problems, lines);
  }
  place_failures({set.records.begin() + static_cast<std::ptrdiff_t>(first), set.records.end()});
}

/// Returns for each record the newest of its case on its machine; the last of equally new ones.
std::vector<std::uint32_t> Reader::newest_of_each() const {
  const std::vector<LocatedRecord>& records = set.records;
  const auto key = [&](std::size_t i) { return records[i].record.id + '\n' + machine_of(records[i].env()); };
  std::unordered_map<std::string, std::uint32_t> winners;
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    std::uint32_t& winner = winners.try_emplace(key(i), i).first->second;
    if (!is_older(records[i].record, records[winner].record)) winner = i;
  }
  std::vector<std::uint32_t> newest;
  newest.reserve(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) newest.push_back(winners.at(key(i)));
  return newest;
}

/// Keeps the newest record of each case on each machine, and with Repeats::all the measured ones of other runs.
void Reader::drop_repeated() {
  const std::vector<LocatedRecord>& records = set.records;
  const std::vector<std::uint32_t> newest = newest_of_each();
  std::map<std::pair<std::uint32_t, std::string>, std::size_t>
      runs;  // of other records, by their newest and run
  std::vector<bool> kept(records.size(), false);
  for (std::size_t i = 0; i < records.size(); ++i) {
    std::size_t w = newest[i];
    kept[i] = w == i;
    if (kept[i]) continue;
    if (repeats_ == Repeats::all && is_repeat(records[i].record, records[w].record) &&
        records[i].record.status == Status::ok && records[w].record.status == Status::ok) {
      const auto [same, is_new] = runs.try_emplace({newest[i], run_text(records[i].record)}, i);
      kept[i] = is_new;
      if (is_new) continue;
      w = same->second;
    }
    const LocatedRecord& winner = records[w];
    const auto& [record, origin, neighbour] = records[i];
    std::string which = "; the newer one is used";
    if (!is_older(record, winner.record)) {
      which = "; the later line is used";
      if (hashes_[i] != hashes_[w]) {
        which = "; their times do not tell which is newer, so nothing can be said of it" + which;
        set.undecided.push_back(record.id);
      }
    }
    add_problem(fmt::format("{}: case {} is repeated at {}", origin.text(), record.id, winner.origin.text()),
                which);
  }
  keep(kept);
}

/// Drops schema 1 records of cases that also have a schema 2 record, whose ids differ.
void Reader::drop_superseded() {
  std::vector<const LocatedRecord*> later;
  for (const LocatedRecord& located : set.records)
    if (located.record.schema > 1) later.push_back(&located);
  if (later.empty() || later.size() == set.records.size()) return;
  FieldIndex index(later);
  std::vector<bool> kept(set.records.size(), true);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const LocatedRecord& old = set.records[i];
    if (old.record.schema > 1) continue;
    for (const LocatedRecord* found : index.like(old.record))
      if (kept[i] && machine_of(found->env()) == machine_of(old.env())) {
        kept[i] = false;
        add_problem(
            fmt::format("{}: case {} is of record schema 1, and its fields are those of {}, which is used",
                        old.origin.text(), old.record.id, found->origin.text()));
      }
  }
  keep(kept);
}

void Reader::keep(const std::vector<bool>& kept) {
  std::vector<LocatedRecord>& records = set.records;
  std::size_t count = 0;
  for (std::size_t i = 0; i < records.size(); ++i)
    if (kept[i] && count++ != i) records[count - 1] = std::move(records[i]);
  records.erase(records.begin() + static_cast<std::ptrdiff_t>(count), records.end());
}

RecordSet Reader::finish() {
  drop_repeated();
  drop_superseded();
  std::set<int> methods;  // of the records that this program's family measured
  bool imported = false;
  for (const LocatedRecord& located : set.records)
    if (located.record.source)
      imported = true;
    else
      methods.insert(located.record.method_version);
  if (imported && !methods.empty())
    add_problem("measured records and imported ones are mixed", "; they are not compared with each other");
  if (methods.size() > 1)
    add_problem(fmt::format("records of method versions {} are mixed", fmt::join(methods, ", ")),
                "; they are not compared with each other");
  if (!methods.empty() && *methods.rbegin() > kMethodVersion)
    add_problem(fmt::format("records of method version {}, but this program knows 1 to {}", *methods.rbegin(),
                            kMethodVersion),
                "; their numbers may mean something else than it says");
  if (not_named_ > 0) set.problems.push_back(fmt::format("and {} more problems", not_named_));
  return std::move(set);
}

/// The last line of a file and its position.
struct LastLine {
  std::string text;  ///< without its newline
  std::uintmax_t begin = 0;
  bool ended = false;
};

/// Returns the last line; nullopt if the file is empty.
std::optional<LastLine> last_line(const std::string& path) {
  constexpr std::uintmax_t kBlock = std::uintmax_t{1} << 16;
  std::ifstream file = open_regular_file(path);
  const std::uintmax_t size = fs::file_size(path);
  if (size == 0) return std::nullopt;
  const auto read = [&](std::uintmax_t begin, std::uintmax_t end) {
    std::string text(static_cast<std::size_t>(end - begin), '\0');
    errno = 0;
    file.seekg(static_cast<std::streamoff>(begin));
    if (!file.read(text.data(), static_cast<std::streamsize>(text.size())))
      cannot("read", path, errno ? errno : EIO);
    return text;
  };
  LastLine last;
  last.ended = read(size - 1, size) == "\n";
  const std::uintmax_t end = last.ended ? size - 1 : size;
  last.begin = end;
  while (last.begin > 0) {
    if (end - last.begin > kRecordLimits.bytes)
      throw InvalidInput(fmt::format("{}: its last line has more than {} bytes, so it is no file of records",
                                     path, kRecordLimits.bytes));
    const std::uintmax_t begin = last.begin - std::min(kBlock, last.begin);
    const std::size_t newline = read(begin, last.begin).rfind('\n');
    last.begin = newline == std::string::npos ? begin : begin + newline + 1;
    if (newline != std::string::npos) break;
  }
  last.text = read(last.begin, end);
  return last;
}

}  // namespace

std::string Origin::text() const { return fmt::format("{}:{}", file, line); }

void append_record(const std::string& path, const Record& record) {
  const std::string line = Json(readable_record(record)).dump(-1, ' ', false, Json::error_handler_t::replace);
  if (const auto why = beyond(line, kRecordLimits))
    throw InvalidInput(fmt::format("cannot write {}: this record cannot be read back: {}", path, *why));
  append_text(path, line + "\n");
}

std::optional<std::string> repair_tail(const std::string& path) {
  if (!fs::exists(path)) return std::nullopt;
  const auto last = last_line(path);
  if (!last) return std::nullopt;
  if (is_object(last->text)) {
    if (!last->ended) append_text(path, "\n");
    if (const auto why = beyond(last->text, kRecordLimits))
      return fmt::format("{}: the last line is whole, but cannot be read as a record: {}", path, *why);
    return last->ended ? std::nullopt
                       : std::optional(path + ": the last line had lost its newline; put back");
  }
  const char* what = !begins_an_object(last->text) ? "is not JSON"
                     : last->ended                 ? "is not whole JSON"
                                                   : "was only half written";
  append_text(path + ".broken", last->text + "\n");
  std::error_code error;
  fs::resize_file(path, last->begin, error);
  if (error) throw InvalidInput("cannot write " + path + ": " + error_text(error));
  return fmt::format("{}: the last line {}; moved to {}.broken", path, what, path);
}

std::string spare_name(const std::string& path) {
  for (int i = 1;; ++i)
    if (const std::string name = fmt::format("{}.{}", path, i); !fs::exists(name)) return name;
}

RecordSet read_records(const std::vector<std::string>& paths, ReduceRecord reduce, Repeats repeats) {
  Reader reader(reduce, repeats);
  std::set<fs::path> seen;
  for (const std::string& path : paths) {
    const RecordSet& set = reader.set;
    const std::size_t records = set.records.size(), problems = set.problems.size();
    bool read_before = false;
    for (const std::string& file : files_of(path)) {
      if (seen.insert(identity_of(file)).second)
        reader.read(file);
      else
        read_before = true;
    }
    if (set.records.size() == records && !read_before)
      reader.set.without_record.push_back(
          fmt::format("{}: no record in it{}", input_name(path),
                      set.problems.size() == problems ? "" : " (" + set.problems[problems] + ")"));
  }
  return reader.finish();
}

}  // namespace precbench
