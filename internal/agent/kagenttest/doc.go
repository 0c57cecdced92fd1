// Package kagenttest is Kernel Agents in memory, for tests: agents of one
// Fabric manage connections with each other and find each other as real ones do,
// by the same Manager, over a network that loses, repeats, delays and so reorders as it is
// told to.
//
//	+-------+   Manager   +----------------------+   Manager   +-------+
//	| Agent |-------------|  Fabric: loss, delay |-------------| Agent |
//	+-------+             +----------------------+             +-------+
//	  Admit: the VI table, for the fake NIC to ask
//
// There is no kernel in it, and no privilege is needed. It runs inside of a
// testing/synctest bubble. Everything may be called concurrently.
//
//	f := kagenttest.NewFabric(kagenttest.Faults{Loss: 0.3, Delay: time.Millisecond, Seed: 1})
//	a, b := f.Agent("a"), f.Agent("b")
//	defer a.Close()
//	defer b.Close()
//	go b.Wait(ctx, kagent.Address{Disc: []byte("echo")})
//	answer, err := a.Request(ctx, kagent.Address{}, kagent.Address{Host: b.Addr(), Disc: []byte("echo")}, offer)
package kagenttest
