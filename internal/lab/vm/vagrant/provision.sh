#!/usr/bin/env bash
# Makes a machine of the Vagrantfile ready: Go, via-xdp, the address of the
# private network's NIC, the names of both machines, a server to play with.
# Usage: provision.sh GO-VERSION [ADDRESS]
set -euo pipefail
go_version=$1 address=${2:-}
export PATH=/usr/local/go/bin:$PATH GOFLAGS=-buildvcs=false

# Each time, so that a machine that is provisioned again has the sources of then.
if [ -x /vagrant/via-xdp.bin ]; then # built already, for machines without a way out
	install /vagrant/via-xdp.bin /usr/local/bin/via-xdp
else
	if [ "$(go env GOVERSION 2>/dev/null || true)" != "go$go_version" ]; then
		command -v curl >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends curl ca-certificates; }
		rm -rf /usr/local/go
		curl -fsSL "https://go.dev/dl/go$go_version.linux-$(dpkg --print-architecture).tar.gz" | tar -C /usr/local -xz
	fi
	(cd /vagrant && CGO_ENABLED=0 go build -o /usr/local/bin/via-xdp ./cmd/via-xdp)
fi
# `vagrant ssh a -c 'via-xdp pingpong b'` runs as user vagrant.
if command -v setcap >/dev/null; then
	setcap cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon,cap_ipc_lock,cap_sys_admin+ep /usr/local/bin/via-xdp
fi

# Hugepages for the arenas of a few programs.
echo 96 >/proc/sys/vm/nr_hugepages

[ -n "$address" ] || exit 0

# The private network's NIC is the one that is not the way out.
out=$(ip -o route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)
nic=
for path in /sys/class/net/*; do
	name=${path##*/}
	if [ -e "$path/device" ] && [ "$name" != "$out" ] && [ "$(cat "$path/type")" = 1 ] &&
		! ip -o -4 addr show dev "$name" scope global dynamic | grep -q .; then
		nic=$name
	fi
done
[ -n "$nic" ] || { echo 'no NIC of the private network found' >&2; ip -br link >&2; exit 1; }
ip addr replace "$address/24" dev "$nic"
ip link set "$nic" up

sed -i '/# via-xdp$/d' /etc/hosts
network=${address%.*}
printf '%s\n' "$network.11 a # via-xdp" "$network.12 b # via-xdp" >>/etc/hosts

# The address for the next boot, and the server: `via-xdp pingpong` on the other
# machine is its client.
cat >/etc/systemd/system/via-xdp.service <<UNIT
[Unit]
Description=via-xdp: server of pingpong and stream on the private network
After=network.target

[Service]
ExecStartPre=-/usr/bin/env ip addr replace $address/24 dev $nic
ExecStartPre=/usr/bin/env ip link set $nic up
ExecStart=/usr/local/bin/via-xdp pingpong --keep -i $nic
LimitMEMLOCK=infinity
Restart=on-failure

[Install]
WantedBy=multi-user.target
UNIT
systemctl daemon-reload
systemctl enable --quiet via-xdp.service
systemctl restart via-xdp.service
# The agent is for programs without privilege: a user of its own, which may not run a
# file with more capabilities than the unit allows, and so has a copy of its own.
if [ -e /vagrant/contrib/systemd/via-xdp-agent.service ] && /usr/local/bin/via-xdp agent --help >/dev/null 2>&1; then
	rm -f /usr/bin/via-xdp
	install /usr/local/bin/via-xdp /usr/bin/via-xdp
	install -D -m 0644 /vagrant/contrib/systemd/via-xdp.sysusers /usr/lib/sysusers.d/via-xdp.conf
	systemd-sysusers via-xdp.conf
	usermod -aG via vagrant
	install -d /etc/via-xdp
	# The NIC carries nothing but what these two machines say to each other.
	printf '[interface.%s]\nzero_copy = ["@via"]\n' "$nic" >/etc/via-xdp/agent.toml
	install -m 0644 /vagrant/contrib/systemd/via-xdp-agent.* /etc/systemd/system/
	systemctl daemon-reload
	systemctl enable --now --quiet via-xdp-agent.socket
	systemctl try-restart via-xdp-agent.service # programs go on meanwhile
	systemctl start via-xdp-agent.service       # that it can
fi
echo "via-xdp serves on $nic, $address"
