// Package tsc reads the processor's time stamp counter if the kernel itself keeps time by it. That takes about 10
// ns; the monotonic clock of package time takes 30 to 80.
//
//	if tsc.Steady() {
//		ns, ok := tsc.Rate() // ns << 32 a tick
//		start := tsc.Read()
//		...
//		elapsed := (tsc.Read() - start) * ns >> 32
//	}
//
// This product overflows after 4 s. Longer times need bits.Mul64, which is good for centuries.
//
// A kernel whose clock source is the TSC has verified that it runs at one rate, in all states of the processor and
// on all processors (Documentation/virt/kvm/x86/timekeeping.rst; arch/x86/kernel/tsc.c). The counter is read on
// amd64 only; elsewhere Steady returns false.
//
// All functions may be called concurrently and need no privilege.
package tsc
