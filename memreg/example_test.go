package memreg_test

import (
	"fmt"

	"viaxdp/memreg"
)

func Example() {
	arena := make([]byte, 1<<20) // of package hugepages, in earnest
	table, err := memreg.NewTable(arena, memreg.Limits{})
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
	fmt.Println(region.UMEMOffset())

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
	// 4096 true
	// 100
	// true
	// <nil>
}
