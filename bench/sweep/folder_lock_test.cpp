// The lock of a folder on file systems without flock, which the tests inject.
#include "bench/sweep/folder_lock.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/machine/environment.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

template <int error>
int refused(int /*descriptor*/, int /*operation*/) {
  errno = error;
  return -1;
}

/// Runs `action` in a process of its own. Returns its exit status and standard error.
Answer in_own_process(const std::function<int()>& action) {
  const TempDirectory directory;
  const pid_t pid = in_background([&] {
    errors_to(directory / "stderr");
    return action();
  });
  const int status = exit_status(pid);
  return {status, file_text(directory / "stderr")};
}

/// Leaves the lock of a process that ended without releasing it.
void leave_lock(const std::string& folder) {
  const Answer left = in_own_process([&] {
    new FolderLock(folder, refused<ENOLCK>);
    return 0;
  });
  REQUIRE(left.status == 0);
}

}  // namespace

TEST_CASE("FolderLock: without flock the file .lock-owner keeps other sweeps out and is removed at the end",
          "[sweep][lock]") {
  for (const FolderLock::Flock flock : {refused<ENOLCK>, refused<ENOSYS>, refused<EOPNOTSUPP>}) {
    const TempDirectory directory;
    const std::string folder = directory / "", owner = directory / ".lock-owner";
    {
      std::optional<FolderLock> lock;
      const Answer said = in_own_process([&] {
        lock.emplace(folder, flock);
        lock.reset();
        return 0;
      });
      CHECK(said.status == 0);
      CHECK(contains(said.text, folder + ": its file system does not lock files ("));
      CHECK(contains(said.text, "; the file .lock-owner there keeps other sweeps out instead\n"));
      lock.emplace(folder, flock);
      CHECK(contains(file_text(owner), fmt::format("\"pid\":{}", getpid())));
      CHECK(contains(refusal_of([&] { FolderLock(folder, flock); }),
                     fmt::format("--out: another sweep (process {} on {}, since ", getpid(), host_name())));
      CHECK(contains(in_own_process([&] {
                       FolderLock other(folder, flock);
                       return 0;
                     }).text,
                     ") is writing to " + folder + "; wait for it or choose another folder"));
    }
    CHECK(!std::filesystem::exists(owner));
    CHECK(refusal_of([&] { FolderLock(folder, flock); }) == "");
  }
}

TEST_CASE("FolderLock: an I/O error or a lock of another sweep does not lead to .lock-owner",
          "[sweep][lock]") {
  const TempDirectory directory;
  const std::string folder = directory / "";
  CHECK(contains(refusal_of([&] { FolderLock(folder, refused<EIO>); }), "--out: cannot lock "));
  CHECK(refusal_of([&] { FolderLock(folder, refused<EWOULDBLOCK>); }) ==
        "--out: another sweep is writing to " + folder + "; wait for it or choose another folder");
  CHECK(!std::filesystem::exists(directory / ".lock-owner"));
}

TEST_CASE("FolderLock: the lock of a process that has ended is taken over on its own host", "[sweep][lock]") {
  const TempDirectory directory;
  const std::string folder = directory / "", owner = directory / ".lock-owner";
  leave_lock(folder);
  REQUIRE(std::filesystem::exists(owner));
  const Answer next = in_own_process([&] {
    FolderLock lock(folder, refused<ENOLCK>);
    return contains(file_text(owner), fmt::format("\"pid\":{}", getpid())) ? 0 : 1;
  });
  CHECK(next.status == 0);
  CHECK(contains(next.text, ": took over the lock of process "));
  CHECK(!std::filesystem::exists(owner));
  CHECK(!std::filesystem::exists(owner + ".takeover"));

  // The number of the dead process belongs to another one now: to this one.
  leave_lock(folder);
  auto json = nlohmann::ordered_json::parse(file_text(owner));
  json["pid"] = getpid();
  directory.write(".lock-owner", json.dump());
  CHECK(refusal_of([&] { FolderLock(folder, refused<ENOLCK>); }) == "");
}

TEST_CASE("FolderLock: the lock of another host or container stays, and the message says what to remove",
          "[sweep][lock]") {
  const TempDirectory directory;
  const std::string folder = directory / "", owner = directory / ".lock-owner";
  for (const char* key : {"host", "space"}) {
    leave_lock(folder);
    auto json = nlohmann::ordered_json::parse(file_text(owner));
    json[key] = "node-9";
    const std::string text = json.dump();
    directory.write(".lock-owner", text);
    const std::string why = refusal_of([&] { FolderLock(folder, refused<ENOLCK>); });
    CHECK(contains(why, fmt::format(" on {}, since 2", json["host"].get<std::string>())));
    CHECK(why.ends_with("; if that process has ended, remove " + owner));
    CHECK(file_text(owner) == text);
    std::filesystem::remove(owner);
  }
  directory.write(".lock-owner", "");
  CHECK(refusal_of([&] {
          FolderLock(folder, refused<ENOLCK>);
        }).ends_with("; if none is, remove " + owner + ", which does not name a process"));
}

TEST_CASE("FolderLock: of many processes that find a dead one's lock exactly one takes it over",
          "[sweep][lock]") {
  const TempDirectory directory;
  const std::string folder = directory / "";
  leave_lock(folder);
  std::vector<pid_t> pids;
  for (int i = 0; i < 6; ++i)
    pids.push_back(in_background([&] {
      errors_to("/dev/null");
      new FolderLock(folder, refused<ENOLCK>);
      directory.write(fmt::format("got-{}", getpid()), "");
      pause();  // holds the lock
      return 0;
    }));
  // The others give up after their patience; the owner stays.
  std::size_t ended = 0;
  CHECK(eventually([&] {
    ended = 0;
    for (const pid_t pid : pids) ended += alive(pid) ? 0 : 1;
    return ended == pids.size() - 1;
  }));
  std::size_t owners = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    owners += entry.path().filename().string().starts_with("got-") ? 1 : 0;
  CHECK(owners == 1);
  for (const pid_t pid : pids) {
    kill(pid, SIGKILL);
    exit_status(pid);
  }
}
