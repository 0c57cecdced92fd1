#!/usr/bin/env bash
# Brings up machines a and b of the Vagrantfile for real and lets them play
# ping-pong, on a machine without virtualization and without a box from outside:
# libvirt with software emulation, and a box made here of Debian's packages.
#
#   internal/lab/vm/vagrant/up.sh [CACHE]     as root, on Debian 12 or newer; some minutes
#
# Needs vagrant vagrant-libvirt libvirt-daemon-system dnsmasq-base iptables
# qemu-system-x86 qemu-utils debootstrap rsync openssh-client. libvirt, its
# networks and the machines live in namespaces of their own and end with this
# script, however it ends; what stays is CACHE (default ~/.cache/via-xdp-vagrant).
set -euo pipefail
cd "$(dirname "$0")/../../../.."

if [ -z "${VIA_UP_INSIDE:-}" ]; then
	missing=$(for c in vagrant libvirtd dnsmasq iptables qemu-system-x86_64 qemu-img debootstrap rsync ssh mke2fs; do
		command -v "$c" >/dev/null || printf ' %s' "$c"; done)
	[ -z "$missing" ] || { echo "missing:$missing; see the head of $0" >&2; exit 2; }
	cache=$(realpath -m "${1:-$HOME/.cache/via-xdp-vagrant}")
	mkdir -p "$cache"
	CGO_ENABLED=0 go build -ldflags '-s -w' -o "$cache/via-xdp.bin" ./cmd/via-xdp

	made=$cache/root.$(sed -n '/^\t# The box.s root/,/^IN$/p' internal/lab/vm/vagrant/up.sh | sha256sum | cut -c 1-16).done # by this recipe
	# The box's root: Debian with a kernel whose virtio-net has zero-copy.
	if [ ! -e "$made" ]; then
		rm -rf "$cache"/root "$cache"/root.*done
		debootstrap --variant=minbase --include=systemd,systemd-sysv,systemd-resolved,openssh-server,sudo,iproute2,libcap2-bin,initramfs-tools,zstd,dbus,rsync,ethtool \
			trixie "$cache/root" http://deb.debian.org/debian >"$cache/debootstrap.log"
		echo 'deb http://deb.debian.org/debian trixie-backports main' >"$cache/root/etc/apt/sources.list.d/backports.list"
		printf '%s\n' virtio_pci virtio_blk virtio_net ext4 >>"$cache/root/etc/initramfs-tools/modules"
		chroot "$cache/root" /bin/bash -euo pipefail >"$cache/packages.log" 2>&1 <<'IN'
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends -t trixie-backports linux-image-cloud-amd64
apt-get clean
useradd -m -s /bin/bash vagrant
echo 'vagrant ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/vagrant
mkdir -p /home/vagrant/.ssh
printf '[Match]\nName=en* eth*\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=ipv6\n[DHCPv4]\nClientIdentifier=mac\nUseHostname=no\n' >/etc/systemd/network/99-dhcp.network
# The provisioner gives the private network's NIC its address.
printf '[Match]\nName=eth1\n[Link]\nUnmanaged=yes\n' >/etc/systemd/network/10-private.network
systemctl enable systemd-networkd ssh
# What takes longer to come in emulation than those wait who ask for it: without
# hostnamectl Vagrant uses hostname(1).
rm -f /usr/bin/hostnamectl
systemctl mask systemd-hostnamed serial-getty@ttyS0
echo 'UseDNS no' >>/etc/ssh/sshd_config
echo '/dev/vda / ext4 defaults 0 1' >/etc/fstab
IN
		touch "$made"
	fi
	export VIA_UP_INSIDE=1
	exec unshare --net --mount --pid --fork --mount-proc --kill-child -- internal/lab/vm/vagrant/up.sh "$cache"
fi

# In namespaces of our own from here on.
cache=$1
root=$cache/root
ip link set lo up
for dir in /run /etc/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt "$cache/work"; do
	mkdir -p "$dir"
	if [ "$dir" = /etc/libvirt ]; then cp -a /etc/libvirt "$cache/etc-libvirt.new"; fi
	mount -t tmpfs tmpfs "$dir"
	if [ "$dir" = /etc/libvirt ]; then cp -a "$cache/etc-libvirt.new/." "$dir/"; rm -rf "$cache/etc-libvirt.new"; fi
done
work=$cache/work
mkdir -p /run/lock /run/libvirt /var/lib/libvirt/{images,qemu,network,dnsmasq,boot} /etc/libvirt/qemu/networks
rm -rf /etc/libvirt/qemu/networks/*
cat >/etc/libvirt/qemu.conf <<'CONF'
stdio_handler = "file"
security_driver = "none"
user = "root"
group = "root"
cgroup_controllers = []
namespaces = []
CONF
cat >/etc/libvirt/libvirtd.conf <<'CONF'
unix_sock_group = "root"
auth_unix_ro = "none"
auth_unix_rw = "none"
CONF

# The box: a disk without boot loader, the kernel beside it.
export VAGRANT_HOME=$work/vagrant-home VAGRANT_CHECKPOINT_DISABLE=1 VAGRANT_DOTFILE_PATH=$work/vagrant-dot
export VAGRANT_DEFAULT_PROVIDER=libvirt VIA_BOX=local/via VIA_DRIVER=qemu VIA_CPU_MODEL=Nehalem
mkdir -p $work/box
key=$(find / -xdev -path '*vagrant*/keys/vagrant.pub' 2>/dev/null | head -n 1)
install -D -m 0600 "$key" "$root/home/vagrant/.ssh/authorized_keys"
chown -R 1000:1000 "$root/home/vagrant" && chmod 0700 "$root/home/vagrant/.ssh"
rm -f "$cache/disk.img"
mke2fs -q -t ext4 -d "$root" "$cache/disk.img" 3G
qemu-img convert -O qcow2 "$cache/disk.img" $work/box/box.img
rm -f "$cache/disk.img"
echo '{"provider":"libvirt","format":"qcow2","virtual_size":3}' >$work/box/metadata.json
echo 'Vagrant.configure("2") { |c| c.vm.provider(:libvirt) { |l| l.driver = "qemu" } }' >$work/box/Vagrantfile
tar -C $work/box -cf $work/local.box metadata.json Vagrantfile box.img
VIA_KERNEL=$(ls "$root"/boot/vmlinuz-* | sort -V | tail -n 1)
VIA_INITRD=$(ls "$root"/boot/initrd.img-* | sort -V | tail -n 1)
export VIA_KERNEL VIA_INITRD VIA_CMDLINE='root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet'

# The project as the machines see it: the sources and the binary made above.
mkdir $work/project
rsync -a --exclude .git ./ $work/project/
cp "$cache/via-xdp.bin" $work/project/
cd $work/project

libvirtd -d
for _ in $(seq 100); do [ -S /run/libvirt/libvirt-sock ] && break; sleep 0.1; done # it says nothing when it is ready
vagrant box add --name local/via $work/local.box
# On a busy host a step in a machine may take longer than Vagrant waits: once more,
# one after the other.
time timeout 2400 vagrant up --parallel a b || { timeout 300 vagrant destroy -f && timeout 2400 vagrant up --no-parallel a b; }
for machine in a b; do
	timeout 300 vagrant ssh $machine -c 'uname -rn; ip -br addr; systemctl is-active via-xdp.service via-xdp-agent.service'
done
timeout 300 vagrant ssh a -c 'via-xdp info eth1'
timeout 300 vagrant ssh a -c 'sudo via-xdp doctor eth1'
timeout 300 vagrant ssh a -c 'via-xdp pingpong b'
timeout 300 vagrant ssh a -c 'via-xdp pingpong -n 200 --check --json - b' | tee "$work/pingpong.json"
grep -q '"mode": "zero-copy"' "$work"/pingpong.json || { echo 'the ping-pong was not in zero-copy mode' >&2; exit 1; }
timeout 300 vagrant destroy -f
echo 'two machines, a ping-pong in zero-copy mode: done'
