#!/bin/sh
# Compiles demux.c to the objects and Go files that are committed, so that
# building needs no clang. Needs clang, llvm-strip, the kernel's headers
# (linux-libc-dev) and libbpf's (libbpf-dev). Run it by `go generate ./bpf`.
#
# The output does not depend on the checkout's path: bpf2go maps it away in the
# debug information. It does depend on the version of clang; CI, which compares,
# uses Debian 12's (14.0.6).
set -eu
cd "$(dirname "$0")"

# The kernel's <asm/types.h> lies in a directory per architecture on Debian,
# which clang does not search when it compiles for BPF. It is the same text in
# each of them, for what BPF uses of it.
multiarch=$(${CC:-cc} -print-multiarch 2>/dev/null || true)

# -mcpu=v3 (32-bit arithmetic and jumps) needs Linux 5.1; the program itself,
# for multi-buffer frames, needs 5.18.
exec go tool bpf2go -go-package bpf -target bpfel -type cause demux demux.c -- \
	-Wall -Wextra -Werror -mcpu=v3 ${multiarch:+-I/usr/include/$multiarch}
