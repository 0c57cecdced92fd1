// Package kagenttest has Kernel Agents in memory, for tests. Agents of one Fabric manage
// connections and find each other as real ones do, by the same Manager. The network between them
// loses, repeats, delays and thereby reorders messages as configured.
//
//	+-------+   Manager   +----------------------+   Manager   +-------+
//	| Agent |-------------|  Fabric: loss, delay |-------------| Agent |
//	+-------+             +----------------------+             +-------+
//	  Admit: the VI table, for the fake NIC to ask
//
// It uses no kernel and needs no privilege. It runs inside a testing/synctest bubble. Everything
// may be called concurrently.
//
//	f := kagenttest.NewFabric(kagenttest.Faults{Loss: 0.3, Delay: time.Millisecond, Seed: 1})
//	a, b := f.Agent("a"), f.Agent("b")
//	defer a.Close()
//	defer b.Close()
//	go b.Wait(ctx, kagent.Address{Disc: []byte("echo")})
//	answer, err := a.Request(ctx, kagent.Address{}, kagent.Address{Host: b.Addr(), Disc: []byte("echo")}, offer)
package kagenttest
