// Package tsc reads the processor's time stamp counter where the kernel itself
// keeps time by it: in about 10 ns, against 30 to 80 of the monotonic clock by
// package time.
//
//	if tsc.Steady() {
//		ns, ok := tsc.Rate() // ns << 32 a tick
//		start := tsc.Read()
//		...
//		elapsed := (tsc.Read() - start) * ns >> 32
//	}
//
// A kernel whose clock source is the TSC has found it to run at one rate, in
// all states of the processor, alike on all processors (Documentation/virt/kvm/
// x86/timekeeping.rst; arch/x86/kernel/tsc.c). It is amd64 only; elsewhere
// Steady is false.
//
// All functions may be called concurrently and need no privilege.
package tsc
