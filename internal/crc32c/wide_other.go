//go:build !amd64

package crc32c

const wide = false

func foldWide(uint32, []byte, *[8][2]uint64) uint32 { panic("crc32c: no wide registers") }
