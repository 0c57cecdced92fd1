#!/usr/bin/env bash
# Checks the Vagrantfile with vagrant itself, for both providers, offline and
# without making anything. Needs vagrant and vagrant-libvirt; of VirtualBox, which
# Debian does not have, only the answer to --version.
set -euo pipefail
cd "$(dirname "$0")/../../../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export VAGRANT_HOME=$tmp/home VAGRANT_CHECKPOINT_DISABLE=1 VAGRANT_DOTFILE_PATH=$tmp/dot
printf '#!/bin/sh\n[ "$1" = --version ] && echo 7.0.20r163906\n' >"$tmp/VBoxManage"
chmod +x "$tmp/VBoxManage"

validate() { # provider, Vagrantfile
	PATH="$tmp:$PATH" VAGRANT_DEFAULT_PROVIDER=$1 VAGRANT_VAGRANTFILE=$2 timeout 60 vagrant validate >"$tmp/out" 2>&1
}

for provider in libvirt virtualbox; do
	validate "$provider" Vagrantfile || { cat "$tmp/out" >&2; exit 1; }
	# That it would have said so: a setting that the provider does not have.
	if [ "$provider" = libvirt ]; then block=lv; else block=vb; fi
	sed "s/    $block.memory = 2048/    $block.no_such_setting = 1/" Vagrantfile >"$tmp/Vagrantfile"
	if validate "$provider" "$tmp/Vagrantfile"; then
		echo "vagrant takes any setting of $provider: this check checks nothing" >&2
		exit 1
	fi
	echo "Vagrantfile: good for $provider"
done
bash -n internal/lab/vm/vagrant/provision.sh
