#!/usr/bin/env bash
# Runs the README's two commands, tools/quickstart.sh and tools/test.sh, in a fresh clone of the current commit on a
# minimal system, which has only what every Debian has. The commands must install the rest.
#
#   tools/ci/in_debian.sh SUITE [FOLDER [MIRROR]]   bookworm or trixie; jammy or noble with Ubuntu's mirror and keyring
#   tools/ci/in_debian.sh here [FOLDER]             on this system, such as a container with only git
#
# For a SUITE, debootstrap makes the system in FOLDER, default out/systems/SUITE, from MIRROR, default its own. That
# needs root. A FOLDER with the system of an earlier call is reused, with a new clone and with what is installed there.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
suite=${1:-}

die() {
  echo "$0: $*" >&2
  exit 2
}

# Makes a clone of the current commit in $1, without what lies in this folder but is not committed.
clone() {
  git -C "$root" diff --quiet HEAD -- || echo "$0: changes that are not committed are left out"
  rm -rf "$1"
  git clone --quiet --no-hardlinks "$root" "$1"
  git -C "$1" checkout --quiet --detach "$commit"
}

[ -n "$suite" ] || { sed -n '5,6p' "$0" >&2; exit 2; }
commit=$(git -C "$root" rev-parse HEAD) || die "$root is no git repository"
commands='tools/quickstart.sh && tools/test.sh'
if [ "$suite" = here ]; then
  folder=${2:-$root/out/systems/here}
  mkdir -p "$(dirname "$folder")"
  clone "$folder"
  cd "$folder" && bash -ec "$commands"
  exit
fi

[[ $suite =~ ^[a-z]+$ ]] || die "$suite: not the name of a suite, such as trixie"
[ "$(id -u)" -eq 0 ] || die "debootstrap and chroot need root"
command -v debootstrap >/dev/null || die "needs debootstrap: apt-get install debootstrap"
folder=$(realpath --canonicalize-missing "${2:-$root/out/systems/$suite}") mirror=${3:-}
components=main
[[ $mirror != *ubuntu* ]] || components=main,universe  # of which Ubuntu has Catch2 and CLI11
if [ ! -f "$folder/.complete" ]; then
  mkdir -p "$folder"
  debootstrap --variant=minbase --components=$components "$suite" "$folder" ${mirror:+"$mirror"} >"$folder.log" ||
    die "debootstrap failed: $folder.log"
  touch "$folder/.complete"
fi
clone "$folder/precbench"
# The mounts are this process's alone and end with it.
environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8)
for name in http_proxy https_proxy no_proxy; do [ -z "${!name:-}" ] || environment+=("$name=${!name}"); done
begun=$SECONDS
unshare --mount bash -ec '
  folder=$1 commands=$2; shift 2
  mount -t proc proc "$folder/proc"
  mount --rbind /dev "$folder/dev"
  mount --rbind /sys "$folder/sys"
  exec chroot "$folder" env -i "$@" bash -ec "apt-get -q update >/dev/null; cd /precbench; $commands"
' in_debian "$folder" "$commands" "${environment[@]}"
. "$folder/etc/os-release"
echo "$PRETTY_NAME, commit ${commit:0:8}: both commands passed in $((SECONDS - begun)) s"
