package mvich_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"sync"

	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/mvich"
	"viaxdp/mvich/pmi"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// A rank that mpiexec has started: each says its number to rank 0.
func Example() {
	launcher, err := pmi.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	nic, err := vipl.OpenNIC(os.Getenv(mvich.DeviceVariable))
	if err != nil {
		log.Fatal(err)
	}
	defer nic.Close()
	world, err := mvich.Init(nic, launcher)
	if err != nil {
		log.Fatal(err)
	}
	c := world.Comm()
	all := make([]int, c.Size())
	if err := mvich.Gather(c, all, []int{c.Rank()}, 0); err != nil {
		world.Abort(1)
	}
	if c.Rank() == 0 {
		fmt.Println(all)
	}
	if err := world.Finalize(); err != nil {
		log.Fatal(err)
	}
}

// exampleJob runs f on ranks of this process, on NICs in memory.
func exampleJob(ranks int, f func(c *mvich.Comm) error) error {
	var example memorynic.Example
	defer example.End()
	wire := xdpnictest.NewWire()
	example.Cleanup(wire.Close)
	fabric := kagenttest.NewFabric(kagenttest.Faults{})
	launchers := mvich.Local(ranks)
	errs := make([]error, ranks)
	var wait sync.WaitGroup
	for rank := range ranks {
		nic := memorynic.Open(&example, wire, fabric.Agent(fmt.Sprint("host", rank)), memorynic.Config{Silence: calm}).NIC
		wait.Go(func() {
			world, err := mvich.Init(nic, launchers[rank])
			if err != nil {
				errs[rank] = err
				return
			}
			errs[rank] = errors.Join(f(world.Comm()), world.Finalize())
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
