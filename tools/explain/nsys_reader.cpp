// Queries the tables of an export. See nsys_reader.h.
#include "tools/explain/nsys_reader.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"

namespace precbench {
namespace {

/// Instructions of SQLite's virtual machine after which a query is given up: about 10 minutes.
constexpr int kStepsPerCall = 1'000'000, kMostCalls = 60'000;
/// Type of NVTX_EVENTS rows that are ranges of one thread (push and pop).
constexpr int kNvtxPushPop = 59;

class Database {
 public:
  explicit Database(const std::string& path) : path_(path) {
    sqlite3* opened = nullptr;
    const int result =
        sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, nullptr);
    database_.reset(opened);
    if (result != SQLITE_OK) refuse();
    // The file may be hostile: nothing in its schema is executed.
    sqlite3_db_config(opened, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
    sqlite3_db_config(opened, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
    sqlite3_db_config(opened, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
    sqlite3_db_config(opened, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    sqlite3_limit(opened, SQLITE_LIMIT_LENGTH, 1 << 24);
    sqlite3_progress_handler(
        opened, kStepsPerCall, [](void* calls) { return ++*static_cast<int*>(calls) > kMostCalls ? 1 : 0; },
        &calls_);
    for (Query tables(*this, "SELECT name FROM sqlite_master WHERE type = 'table'"); tables.next();)
      tables_.insert(tables.text(0));
  }

  class Query {
   public:
    Query(Database& database, const std::string& sql) : database_(database) {
      sqlite3_stmt* made = nullptr;
      if (sqlite3_prepare_v2(database.database_.get(), sql.c_str(), -1, &made, nullptr) != SQLITE_OK)
        database.refuse();
      statement_.reset(made);
    }
    bool next() {
      const int result = sqlite3_step(statement_.get());
      if (result != SQLITE_ROW && result != SQLITE_DONE) database_.refuse();
      return result == SQLITE_ROW;
    }
    std::int64_t number(int column) { return sqlite3_column_int64(statement_.get(), column); }
    bool null(int column) { return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL; }
    std::string text(int column) {
      const auto* bytes = sqlite3_column_text(statement_.get(), column);
      const int size = sqlite3_column_bytes(statement_.get(), column);
      return bytes ? std::string(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size)) : "";
    }

   private:
    struct Finalize {
      void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
    };
    Database& database_;
    std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  };

  bool has(const std::string& table) const { return tables_.contains(table); }

  [[noreturn]] void refuse() const {
    throw InvalidInput(fmt::format("{}: cannot be read as an export of Nsight Systems: {}", path_,
                                   database_ ? sqlite3_errmsg(database_.get()) : "out of memory"));
  }

 private:
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close(database); }
  };
  std::string path_;
  std::unique_ptr<sqlite3, Close> database_;
  std::set<std::string> tables_;
  int calls_ = 0;
};

using Query = Database::Query;

/// Sets start and duration, of at most `longest`; false if they are no times.
template <class Event>
bool set_times(Event& event, Query& row, std::int64_t longest) {
  const std::int64_t start = row.number(0), end = row.number(1);
  if (row.null(0) || row.null(1) || start < 0 || end < start || end > kMostTraceNs || end - start > longest)
    return false;
  event.start = start;
  event.duration = end - start;
  return true;
}

/// Splits PyTorch's "aten::mm, seq = 12, op_id = 7, sizes = [[4096, 2048], [2048, 2048]]" into name and shapes.
std::pair<std::string, OpInputs> parse_nvtx(const std::string& text) {
  OpInputs inputs;
  const std::size_t comma = text.find(", seq = "), sizes = text.find("sizes = [");
  const std::size_t end = std::min({comma, text.find(", op_id = "), text.find(", sizes = ")});
  if (sizes != std::string::npos) {
    int depth = 0;
    std::string number;
    for (std::size_t i = sizes + 8; i < text.size() && inputs.dims.size() < 64; ++i) {
      const char c = text[i];
      if (c >= '0' && c <= '9' && number.size() < 12) {
        number += c;
        continue;
      }
      if (!number.empty() && depth == 2 && !inputs.dims.empty() && inputs.dims.back().size() < 16)
        inputs.dims.back().push_back(parse_number<std::int64_t>(number).value_or(0));
      number.clear();
      if (c == '[' && ++depth == 2) inputs.dims.emplace_back();
      if (c == ']' && --depth == 0) break;
    }
    inputs.elements.resize(inputs.dims.size());
  }
  return {text.substr(0, end), inputs};
}

/// Reads the tables of one export.
class NsysReader {
 public:
  NsysReader(const std::string& path, TrainingTrace& trace)
      : trace_(trace), builder_(trace), database_(path) {
    builder_.name("(names beyond the limit)");
    if (!database_.has("CUPTI_ACTIVITY_KIND_KERNEL") || !database_.has("StringIds"))
      throw InvalidInput(
          fmt::format("{}: no CUDA kernels in this SQLite file; export with "
                      "nsys export --type sqlite, of a profile taken with --trace cuda,nvtx",
                      path));
  }

  void read() {
    read_names();
    read_kernels();
    read_copies("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind", GpuWork::copy);
    read_copies("CUPTI_ACTIVITY_KIND_MEMSET", "0", GpuWork::set);
    read_calls();
    read_ranges();
    builder_.finish();
  }

 private:
  /// Calls read(event, row) for each row of a query that begins with start and end, and counts those with impossible times.
  template <class Event, class Read>
  void each(const std::string& query, std::int64_t longest, const Read& read) {
    for (Query row(database_, query); row.next();) {
      Event event;
      if (set_times(event, row, longest))
        read(event, row);
      else
        ++trace_.malformed;
    }
  }
  /// The same for work of the GPU; its rows go on with device, stream and correlation.
  template <class Name>
  void each_gpu(const std::string& query, GpuWork work, const Name& name) {
    each<GpuEvent>(query, kMostGpuEventNs, [&](GpuEvent& event, Query& row) {
      event.device = static_cast<std::int32_t>(row.number(2));
      event.stream = static_cast<std::int32_t>(row.number(3));
      event.work = work;
      event.name = name(row);
      builder_.add_gpu(event, static_cast<std::uint64_t>(row.number(4)), 0);
    });
  }

  void read_names() {
    // Only names of kernels and calls: other strings are file names and the like, and would fill the limit.
    std::string used =
        "SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL "
        "UNION SELECT shortName FROM CUPTI_ACTIVITY_KIND_KERNEL";
    if (database_.has("CUPTI_ACTIVITY_KIND_RUNTIME"))
      used += " UNION SELECT nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME";
    for (Query row(database_, fmt::format("SELECT id, value FROM StringIds WHERE id IN ({})", used));
         row.next();)
      if (strings_.size() < kMostNames) strings_.emplace(row.number(0), builder_.name(row.text(1)));
    if (database_.has("TARGET_INFO_GPU"))
      if (Query row(database_, "SELECT name FROM TARGET_INFO_GPU LIMIT 1"); row.next())
        trace_.gpu_name = row.text(0).substr(0, kMostNameBytes);
  }

  std::uint32_t string_of(std::int64_t id) {
    const auto found = strings_.find(id);
    return found == strings_.end() ? builder_.name("(unknown name)") : found->second;
  }

  void read_kernels() {
    each_gpu(
        "SELECT start, end, deviceId, streamId, correlationId, demangledName, shortName "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL",
        GpuWork::kernel, [&](Query& row) { return string_of(row.number(row.null(5) ? 6 : 5)); });
  }

  void read_copies(const char* table, const char* kind_column, GpuWork work) {
    if (!database_.has(table)) return;
    each_gpu(
        fmt::format("SELECT start, end, deviceId, streamId, correlationId, {} FROM {}", kind_column, table),
        work, [&](Query& row) {
          if (work == GpuWork::set) return builder_.name("Memset");
          switch (row.number(5)) {  // CUPTI's kinds
            case 1:
              return builder_.name("Memcpy HtoD");
            case 2:
              return builder_.name("Memcpy DtoH");
            case 8:
              return builder_.name("Memcpy DtoD");
            default:
              return builder_.name("Memcpy");
          }
        });
  }

  void read_calls() {
    if (!database_.has("CUPTI_ACTIVITY_KIND_RUNTIME")) return;
    each<HostEvent>("SELECT start, end, correlationId, globalTid, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME",
                    kMostTraceNs, [&](HostEvent& event, Query& row) {
                      event.thread = row.number(3);
                      event.name = string_of(row.number(4));
                      builder_.add_call(event, static_cast<std::uint64_t>(row.number(2)), 0);
                    });
  }

  void read_ranges() {
    if (!database_.has("NVTX_EVENTS")) return;
    each<HostEvent>(
        fmt::format("SELECT n.start, n.end, n.globalTid, COALESCE(n.text, s.value) FROM NVTX_EVENTS n "
                    "LEFT JOIN StringIds s ON s.id = n.textId WHERE n.eventType = {} AND n.end IS NOT NULL",
                    kNvtxPushPop),
        kMostTraceNs, [&](HostEvent& event, Query& row) {
          event.thread = row.number(2);
          auto [name, inputs] = parse_nvtx(row.text(3));
          event.name = builder_.name(name);
          event.inputs = builder_.inputs(std::move(inputs));
          builder_.add_op(event, 0);
        });
  }

  TrainingTrace& trace_;
  TraceBuilder builder_;
  Database database_;
  std::unordered_map<std::int64_t, std::uint32_t> strings_;
};

}  // namespace

bool is_sqlite(std::string_view begin) {
  return begin.starts_with(std::string_view("SQLite format 3\0", 16));
}

TrainingTrace read_nsys(const std::string& path) {
  TrainingTrace trace;
  trace.file = path;
  trace.format = "Nsight Systems";
  NsysReader(path, trace).read();
  return trace;
}

}  // namespace precbench
