package vipl

// RegisterAddress is RegisterMem for memory that no slice of Go stands for,
// such as that of a program in C: n bytes at addr, which must stay mapped until
// the region is deregistered. All else as RegisterMem.
//
// ErrInvalidParameter for no bytes, and for bytes that are not mapped or not
// readable, ErrInvalidPtag, ErrResource past the NIC's limits.
func (n *Nic) RegisterAddress(addr, size uint64, a MemAttributes) (*Region, error) {
	attr, err := n.memAttributes("RegisterMem", a)
	if err != nil {
		return nil, err
	}
	reg, err := n.mem.RegisterForeign(addr, size, attr)
	if err != nil {
		return nil, memoryError("RegisterMem", err)
	}
	return &Region{nic: n, reg: reg, buf: reg.Bytes(), attrs: a}, nil
}
