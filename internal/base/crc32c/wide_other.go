//go:build !amd64

package crc32c

const wide, short = false, false

func foldWide(uint32, []byte, *[8][2]uint64) uint32 { panic("crc32c: no wide registers") }

func foldCopy(uint32, *byte, []byte, *[8][2]uint64) uint32 { panic("crc32c: no wide registers") }

func foldShort(uint32, []byte) uint32 { panic("crc32c: no such instruction") }
