// Command rod computes the heat in a rod whose ends are kept at 0 and 100 degrees, until
// it has settled. Each rank of package mvich has a part of the rod. Neighbours exchange
// the points at their borders in each step (Sendrecv, with ProcNull at the ends of the
// rod). Now and then all ranks agree on the largest change (AllReduce), and rank 0 prints
// the result (Gather).
//
//	go build ./examples/rod
//	via-xdp mpirun -np 4 ./rod
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"slices"

	"viaxdp/mvich"
	"viaxdp/mvich/pmi"
	"viaxdp/vipl"
)

const (
	points  = 8    // of a rank
	settled = 1e-6 // degrees: no point changes by more in a step
	often   = 50   // steps between two checks of that
	tag     = 1
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("rod: ")
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() (err error) {
	launcher, err := pmi.FromEnv() // the launcher knows the rank's number
	if err != nil {
		return err
	}
	nic, err := vipl.OpenNIC(os.Getenv(mvich.DeviceVariable))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	world, err := mvich.Init(nic, launcher)
	if err != nil {
		return err
	}
	if err := relax(world.Comm()); err != nil {
		log.Print(err) // before the abort, at which a launcher may kill all ranks
		world.Abort(1)
		os.Exit(1)
	}
	return world.Finalize()
}

// relax makes each point the mean of its neighbours, again and again.
func relax(c *mvich.Comm) error {
	left, right := c.Rank()-1, c.Rank()+1
	rod := make([]float64, points+2) // the first and the last are the neighbours' points
	if left < 0 {
		left = mvich.ProcNull
	}
	if right == c.Size() {
		right, rod[points+1] = mvich.ProcNull, 100
	}
	next := slices.Clone(rod)
	steps := 0
	for change := []float64{100}; change[0] > settled; steps++ {
		if _, err := mvich.Sendrecv(c, rod[1:2], left, tag, rod[points+1:], right, tag); err != nil {
			return err
		}
		if _, err := mvich.Sendrecv(c, rod[points:points+1], right, tag, rod[:1], left, tag); err != nil {
			return err
		}
		most := 0.0
		for i := 1; i <= points; i++ {
			next[i] = (rod[i-1] + rod[i+1]) / 2
			most = max(most, next[i]-rod[i])
		}
		rod, next = next, rod
		if steps%often != 0 {
			continue
		}
		if err := mvich.AllReduce(c, change, []float64{most}, mvich.Max); err != nil {
			return err
		}
	}
	var whole []float64
	if c.Rank() == 0 {
		whole = make([]float64, points*c.Size())
	}
	if err := mvich.Gather(c, whole, rod[1:points+1], 0); err != nil {
		return err
	}
	if c.Rank() == 0 {
		fmt.Printf("%d points of %d ranks have settled after %d steps\n", len(whole), c.Size(), steps)
		for i := points / 2; i < len(whole); i += points {
			fmt.Printf("point %2d: %5.1f\n", i+1, whole[i])
		}
	}
	return nil
}
