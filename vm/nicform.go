package main

import "fmt"

// nicForm is a kind of NIC.
type nicForm struct {
	name      string
	device    string // QEMU's name
	options   string // of the device
	machine   string // QEMU's machine
	rootPort  bool   // each needs a PCI Express port of its own
	cloud     bool   // Debian's cloud kernel has the driver
	backports bool   // needs a newer QEMU than Debian 12 has
	modules   []string
	// queues are what a guest gets without --queues. igb has one for each
	// processor and hashes IP over them, where sockets hear one only.
	queues int
	// slow: opening takes seconds, as the link goes down for each.
	slow int
}

// forms are the NICs that QEMU emulates and whose drivers have zero-copy queues.
var forms = []nicForm{
	{
		name: "virtio", device: "virtio-net-pci", machine: "pc", cloud: true,
		// Without iommu_platform the driver says that it has zero-copy and then
		// refuses the bind (EINVAL, virtnet_xsk_pool_enable): its DMA addresses
		// would not be those of the DMA API.
		options: "iommu_platform=on,disable-legacy=on,romfile=",
		modules: []string{"virtio_pci", "virtio_net", "veth"},
	},
	{
		name: "igb", device: "igb", machine: "q35", rootPort: true, backports: true, queues: 1, slow: 3,
		modules: []string{"igb", "veth"},
	},
}

func findForm(name string) (nicForm, error) {
	var names []string
	for _, f := range forms {
		if f.name == name {
			return f, nil
		}
		names = append(names, f.name)
	}
	return nicForm{}, fmt.Errorf("no NIC %q: there are %q", name, names)
}

// zeroCopySince is the first kernel whose driver has zero-copy queues, as major
// and minor number.
func (f nicForm) zeroCopySince() [2]int {
	if f.name == "virtio" {
		return [2]int{6, 16} // with a DMA premapped receive queue
	}
	return [2]int{6, 14} // igb
}
