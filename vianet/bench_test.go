package vianet_test

import (
	"fmt"
	"io"
	"net"
	"testing"

	"viaxdp/vianet"
)

// Ways are the connections that the benchmarks compare: this package's over queues in memory and over a veth pair,
// and package net's. One process holds both ends, as it is with package net, too: the figures say how the ways
// compare, not what two hosts would see.
var ways = []struct {
	name string
	pair func(b *testing.B) (x, y net.Conn)
}{
	{"memory", func(b *testing.B) (x, y net.Conn) { return inMemory(b, vianet.Options{}).conns(b) }},
	{"memory-asleep", func(b *testing.B) (x, y net.Conn) { return inMemory(b, vianet.Options{Spin: -1}).conns(b) }},
	{"veth", func(b *testing.B) (x, y net.Conn) { return overVeth(b, 1500, vianet.Options{}).conns(b) }},
	{"veth-9000", func(b *testing.B) (x, y net.Conn) { return overVeth(b, 9000, vianet.Options{}).conns(b) }},
	{"veth-write", func(b *testing.B) (x, y net.Conn) {
		return overVeth(b, 1500, vianet.Options{NoRDMARead: true}).conns(b)
	}},
	{"veth-buffers", func(b *testing.B) (x, y net.Conn) { return overVeth(b, 1500, vianet.Options{Threshold: -1}).conns(b) }},
	{"pipe", func(b *testing.B) (x, y net.Conn) { return net.Pipe() }},
	{"tcp-loopback", tcpPair},
}

func (h *hosts) conns(b *testing.B) (x, y net.Conn) { return h.pair(b) }

func tcpPair(b *testing.B) (x, y net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	if x, err = net.Dial("tcp", l.Addr().String()); err != nil {
		b.Fatal(err)
	}
	if y, err = l.Accept(); err != nil {
		b.Fatal(err)
	}
	return x, y
}

// BenchmarkPingPong is a round trip of so many bytes; ns/one-way is half of it.
func BenchmarkPingPong(b *testing.B) {
	for _, w := range ways {
		for _, size := range []int{64, 4096, 65536} {
			b.Run(fmt.Sprintf("%s/%d", w.name, size), func(b *testing.B) {
				x, y := w.pair(b)
				done := make(chan error, 1)
				go func() {
					buf := make([]byte, size)
					for {
						_, err := io.ReadFull(y, buf)
						if err == nil {
							_, err = y.Write(buf)
						}
						if err != nil {
							done <- err
							return
						}
					}
				}()
				buf := make([]byte, size)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := x.Write(buf); err != nil {
						b.Fatal(err)
					}
					if _, err := io.ReadFull(x, buf); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/one-way")
				x.Close()
				if err := <-done; err != io.EOF {
					b.Error(err)
				}
				y.Close()
			})
		}
	}
}

// BenchmarkStream is one way, Writes of so many bytes and Reads of as many, to the last byte's arrival.
func BenchmarkStream(b *testing.B) {
	for _, w := range ways {
		for _, size := range []int{64, 4096, 65536, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", w.name, size), func(b *testing.B) {
				x, y := w.pair(b)
				done := make(chan int64, 1)
				go func() {
					n, buf := int64(0), make([]byte, size)
					for {
						k, err := y.Read(buf)
						n += int64(k)
						if err != nil {
							done <- n
							return
						}
					}
				}()
				buf := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				sent := int64(0)
				for b.Loop() {
					if _, err := x.Write(buf); err != nil {
						b.Fatal(err)
					}
					sent += int64(size)
				}
				x.Close()
				if n := <-done; n != sent {
					b.Errorf("%d bytes arrived of %d", n, sent)
				}
				y.Close()
			})
		}
	}
}
