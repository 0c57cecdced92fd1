#!/usr/bin/env bash
# newest.sh DIR: unpacks the libfabric of Debian testing into DIR, with the C library that it needs. Nothing is installed.
# Programs run with it by DIR/usr/lib/*/ld-linux*.so.* --library-path DIR/usr/lib/*. See docs/libfabric.md.
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd)
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt"/lists/partial "$apt"/cache/archives/partial "$apt"/deb
chmod -R go+rX "$apt"
: >"$apt/status" # as if nothing were installed
# From where this machine has its own packages.
from=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
[ -n "$from" ] || { echo 'apt knows no packages of Debian: apt-get update'; exit 1; }
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from testing main" >"$apt/sources.list"
of_testing=(-o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$apt/lists"
	-o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none)
apt-get "${of_testing[@]}" -qq update
# What fi_pingpong needs; of libibverbs the drivers, too, which Debian's package of them depends on.
packages=$(apt-get "${of_testing[@]}" -s --no-install-recommends install libfabric-bin libfabric-dev | sed -n 's/^Inst \([^ ]*\) .*/\1/p' |
	grep -E '^(libfabric|libc6$|libgcc-s1$|libibverbs1|ibverbs-providers|librdmacm1|libpsm2|libnl-|libnuma1)')
cd "$apt/deb"
# shellcheck disable=SC2086 # a list of names
apt-get "${of_testing[@]}" -qq download $packages
for deb in *.deb; do dpkg-deb -x "$deb" "$dir"; done
