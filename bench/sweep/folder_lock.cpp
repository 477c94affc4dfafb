// Locks with flock or with a file that is created exclusively. See folder_lock.h.
#include "bench/sweep/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "bench/machine/environment.h"
#include "bench/process/standard_error.h"
#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"
#include "results/record/provenance.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

/// Time for a lock that is about to be released: a sweep that was killed while starting a child leaves flock's lock
/// with the child for a moment, and a new .lock-owner is empty for a moment.
constexpr auto kLockPatience = 500ms, kBetweenTries = 10ms;
constexpr std::size_t kLongestOwner = 4096;

bool refuses_flock(int error) { return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP; }

/// `owner`: " (process ...)", if it is known. `remedy`: "; ...", if there is another one than those for every folder.
[[noreturn]] void refuse_locked(const std::string& folder, const std::string& owner = "",
                                const std::string& remedy = "") {
  throw InvalidInput(
      fmt::format("--out: another sweep{} is writing to {}; wait for it or choose another folder{}", owner,
                  folder, remedy));
}

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Fields 3 and 22 of /proc/PID/stat; both empty if it cannot be read.
struct ProcessState {
  std::string state;  ///< "Z": has ended, and its parent has not noticed
  std::string start;  ///< clock ticks since the boot
};

ProcessState process_state(pid_t pid) {
  const std::string stat = first_line_of(fmt::format("/proc/{}/stat", pid));
  const std::size_t name_end = stat.rfind(')');  // the name may contain anything
  if (name_end == std::string::npos) return {};
  std::istringstream fields(stat.substr(name_end + 1));
  const std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
  constexpr std::size_t kStart = 19;  // field 22, counted from field 3
  return words.size() > kStart ? ProcessState{words[0], words[kStart]} : ProcessState{};
}

/// Returns an id of what gives process ids their meaning: this boot of the system, and the container.
std::string process_space() {
  std::error_code error;
  return first_line_of("/proc/sys/kernel/random/boot_id") + " " +
         fs::read_symlink("/proc/self/ns/pid", error).string();
}

/// Content of .lock-owner.
struct Owner {
  std::string host, space, start, since;
  pid_t pid = 0;

  bool operator==(const Owner&) const = default;
  bool is_here() const { return host == host_name() && space == process_space(); }
  /// True if it is known that the process has ended. Another one may have its number by now, and one of another user
  /// may be hidden.
  bool is_dead() const {
    if (!is_here() || pid <= 0) return false;
    if (kill(pid, 0) != 0 && errno == ESRCH) return true;
    const ProcessState now = process_state(pid);
    return now.state == "Z" || now.state == "X" || (!now.start.empty() && now.start != start);
  }
  std::string text() const {
    const Json json = {{"host", host}, {"pid", pid}, {"start", start}, {"space", space}, {"since", since}};
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
};

Owner this_process() {
  return {host_name(), process_space(), process_state(getpid()).start, utc_text(std::time(nullptr)),
          getpid()};
}

/// Returns the owner; null if the file is gone or not readable as one, perhaps because it is being written.
std::optional<Owner> read_owner(const std::string& path) {
  try {
    const auto json =
        parse_untrusted<Json>(read_regular_file(path, kLongestOwner), {.bytes = kLongestOwner, .depth = 2});
    return Owner{json.at("host").get<std::string>(), json.at("space").get<std::string>(),
                 json.at("start").get<std::string>(), json.at("since").get<std::string>(),
                 json.at("pid").get<pid_t>()};
  } catch (const InvalidInput&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

/// Creates the file with this text. Returns false if it exists already. Throws InvalidInput.
bool create_exclusively(const std::string& path, const std::string& text) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0 && errno == EEXIST) return false;
  int error = descriptor < 0 ? errno : 0;
  if (descriptor >= 0) {
    errno = ENOSPC;  // of a short write
    const bool whole = write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    if (!whole) error = errno;
    if (close(descriptor) != 0 && whole) error = errno;
    if (error != 0) unlink(path.c_str());
  }
  if (error != 0) throw InvalidInput(fmt::format("--out: cannot write to {}: {}", path, error_text(error)));
  return true;
}

/// Removes the file of a dead owner and creates that of `own`. A second file makes the takeover exclusive: without it
/// another process could remove a lock that was taken over in between. Returns false if another process was faster.
bool take_over(const std::string& path, const Owner& dead, const Owner& own) {
  const std::string guard = path + ".takeover";
  if (!create_exclusively(guard, own.text())) return false;
  bool mine = false;
  try {
    if (read_owner(path) == dead) unlink(path.c_str());
    mine = create_exclusively(path, own.text());
  } catch (...) {
    unlink(guard.c_str());
    throw;
  }
  unlink(guard.c_str());
  return mine;
}

/// Creates .lock-owner. Throws InvalidInput if another process has it.
void become_owner(const std::string& folder, const std::string& path) {
  const Owner own = this_process();
  for (const auto end = Clock::now() + kLockPatience;; std::this_thread::sleep_for(kBetweenTries)) {
    if (create_exclusively(path, own.text())) return;
    const std::optional<Owner> other = read_owner(path);
    if (other && other->is_dead() && take_over(path, *other, own)) {
      log_line(fmt::format("precbench: {}: took over the lock of process {}, which has ended", folder,
                           other->pid));
      return;
    }
    if (Clock::now() < end) continue;
    if (!other)
      refuse_locked(folder, "", fmt::format("; if none is, remove {}, which does not name a process", path));
    const std::string who =
        fmt::format(" (process {} on {}, since {})", other->pid, other->host, other->since);
    if (other->is_dead())  // and another process has been taking over for all this time
      refuse_locked(folder, who, fmt::format("; it has ended: remove {0} and {0}.takeover", path));
    if (other->is_here()) refuse_locked(folder, who);
    refuse_locked(folder, who, fmt::format("; if that process has ended, remove {}", path));
  }
}

/// Warns once per folder that flock does not work there, and why.
void warn_without_flock(const std::string& folder, int error) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  const std::lock_guard guard(mutex);
  if (warned.insert(folder).second)
    log_line(fmt::format(
        "precbench: {}: its file system does not lock files ({}); the file .lock-owner there keeps other "
        "sweeps out instead",
        folder, error_text(error)));
}

}  // namespace

std::string lock_in(const std::string& folder) { return (fs::path(folder) / ".lock").string(); }

FolderLock::FolderLock(const std::string& folder) : FolderLock(folder, ::flock) {}

FolderLock::FolderLock(const std::string& folder, Flock flock) {
  const std::string lock = lock_in(folder);
  descriptor_ = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0)
    throw InvalidInput(fmt::format("--out: cannot write to {}: {}", folder, error_text(errno)));
  int error = 0;
  for (const auto end = Clock::now() + kLockPatience;; std::this_thread::sleep_for(kBetweenTries)) {
    error = flock(descriptor_, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (error == EINTR) continue;
    if (error != EWOULDBLOCK || Clock::now() >= end) break;
  }
  if (error == 0) return;
  try {
    if (error == EWOULDBLOCK) refuse_locked(folder);
    if (!refuses_flock(error))
      throw InvalidInput(fmt::format("--out: cannot lock {}: {}", lock, error_text(error)));
    warn_without_flock(folder, error);
    const std::string owner = lock + "-owner";
    become_owner(folder, owner);
    owner_ = owner;
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

FolderLock::~FolderLock() {
  // A user may have removed the file, so that it is another process's by now; after fork() it is the parent's.
  if (!owner_.empty())
    if (const auto owner = read_owner(owner_); owner && owner->is_here() && owner->pid == getpid())
      unlink(owner_.c_str());
  close(descriptor_);
}

}  // namespace precbench
