package memreg_test

import (
	"errors"
	"fmt"

	"viaxdp/memreg"
)

func Example() {
	arena := make([]byte, 1<<20) // of package hugepages, in earnest
	table, err := memreg.NewTable(memreg.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	tag, err := table.CreatePtag()
	if err != nil {
		fmt.Println(err)
		return
	}
	region, err := table.Register(arena[4096:8192], memreg.Attributes{Ptag: tag})
	if err != nil {
		fmt.Println(err)
		return
	}

	// A descriptor names 100 bytes by handle and address.
	seg, r, err := table.Resolve(region.Handle(), region.Addr()+10, 100, tag)
	if err != nil || !r.Acquire() {
		fmt.Println("refused", err)
		return
	}
	fmt.Println(len(seg))
	fmt.Println(table.Deregister(region.Handle(), region.Addr()) != nil) // in use
	r.Release()
	fmt.Println(table.Deregister(region.Handle(), region.Addr()))
	// Output:
	// 100
	// true
	// <nil>
}

func ExampleTable_ResolveRemote() {
	table, err := memreg.NewTable(memreg.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	tag, err := table.CreatePtag()
	if err != nil {
		fmt.Println(err)
		return
	}
	buf := make([]byte, 64)
	region, err := table.Register(buf, memreg.Attributes{Ptag: tag, EnableRDMAWrite: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A frame of an RDMA write came: five bytes for offset 8.
	write := func(data string) error {
		seg, r, err := table.ResolveRemote(region.Handle(), region.Addr()+8, uint32(len(data)), tag, memreg.RemoteWrite)
		if err != nil {
			return err
		}
		defer r.Release()
		copy(seg, data)
		return nil
	}
	fmt.Println(write("hello"))
	fmt.Printf("%s\n", buf[8:13])

	// From now on peers may only read.
	err = table.SetAttributes(region, memreg.Attributes{Ptag: tag, EnableRDMARead: true})
	fmt.Println(err)
	fmt.Println(errors.Is(write("again"), memreg.ErrRights))
	// Output:
	// <nil>
	// hello
	// <nil>
	// true
}
