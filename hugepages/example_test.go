package hugepages_test

import (
	"fmt"

	"viaxdp/hugepages"
)

func ExampleArena() {
	arena, err := hugepages.New(hugepages.Config{Size: 8 << 20, Reserve: 4 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	umem := arena.Bytes() // its first 4 MB are chunks, the rest is ours to register
	block, err := arena.Alloc(1000, 64)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(umem), len(block), arena.Stats().Blocks)
	fmt.Println(arena.Free(block), arena.Close())
	// Output:
	// 8388608 1000 1
	// <nil> <nil>
}
