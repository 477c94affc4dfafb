# Helpers for scripts that install build dependencies; sourced in the repository's root by
# setup.sh and fuzz/run.sh.

die() {
  echo "$0: $*" >&2
  exit 1
}

# Installs packages with apt, as root or with sudo; ends the script if that is impossible.
install_packages() {
  local root=() log=build/apt.log
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo here; as root: apt-get install $*"
    root=(sudo)
    [ -t 0 ] || root=(sudo -n)  # without a terminal, sudo must not wait for a password
  fi
  # A machine that has just booted may be updating itself: wait for the lock.
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
  local install=("${apt[@]}" install --no-install-recommends "$@")
  mkdir -p build
  echo "Installing $* ..."
  # The package lists may be missing or outdated; fetch them only then.
  "${install[@]}" >"$log" 2>&1 </dev/null || { "${apt[@]}" update && "${install[@]}"; } >"$log" 2>&1 </dev/null ||
    die "apt-get could not install $*: $(grep -E '^(E:|sudo:)' "$log" | tail -n 1) (all of it: $log)"
}

# Prints the number of parallel compilers: one per core, with at least 1.5 GiB each.
jobs() {
  local cores memory_kib limit
  cores=$(nproc)
  memory_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo 2>/dev/null)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)  # of a container; "max": no limit
  [[ $limit =~ ^[0-9]+$ ]] && [ $((limit / 1024)) -lt "${memory_kib:-0}" ] && memory_kib=$((limit / 1024))
  local fit=$((${memory_kib:-1572864} / 1572864))
  [ "$fit" -lt "$cores" ] && cores=$fit
  echo $((cores > 0 ? cores : 1))
}
