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
		log.Print(err) // before the abort, at which a launcher may kill all ranks
		world.Abort(1)
		os.Exit(1)
	}
	if c.Rank() == 0 {
		fmt.Println(all)
	}
	if err := world.Finalize(); err != nil {
		log.Fatal(err)
	}
}

// exampleJob runs f on ranks of this process, on NICs in memory, and prints errors.
func exampleJob(ranks int, f func(c *mvich.Comm) error) {
	var example memorynic.Example
	defer example.End()
	wire := xdpnictest.NewWire()
	example.Cleanup(wire.Close)
	fabric := kagenttest.NewFabric(kagenttest.Faults{})
	launchers := mvich.Local(ranks)
	var wait sync.WaitGroup
	for rank := range ranks {
		nic := memorynic.Open(&example, wire, fabric.Agent(fmt.Sprint("host", rank)), memorynic.Config{}).NIC
		wait.Go(func() {
			world, err := mvich.Init(nic, launchers[rank])
			if err == nil {
				err = errors.Join(f(world.Comm()), world.Finalize())
			}
			if err != nil {
				fmt.Println("rank", rank, err)
			}
		})
	}
	wait.Wait()
}

// Slices of numbers are sent as they are. Recv says whose message it was and how many elements came.
func ExampleSend() {
	const tag = 7
	exampleJob(2, func(c *mvich.Comm) error {
		if c.Rank() == 0 {
			return mvich.Send(c, []float64{1, 2, 3}, 1, tag)
		}
		buf := make([]float64, 10)
		status, err := mvich.Recv(c, buf, mvich.AnySource, tag)
		if err != nil {
			return err
		}
		n := mvich.Count[float64](status)
		fmt.Println("of rank", status.Source, buf[:n])
		return nil
	})
	// Output: of rank 0 [1 2 3]
}

// What is begun is a request; several are waited for at once.
func ExampleIrecv() {
	exampleJob(3, func(c *mvich.Comm) error {
		if c.Rank() > 0 {
			return mvich.Send(c, []int{c.Rank() * c.Rank()}, 0, 0)
		}
		squares := make([]int, 3)
		var requests []*mvich.Request
		for rank := 1; rank < 3; rank++ {
			r, err := mvich.Irecv(c, squares[rank:rank+1], rank, 0)
			if err != nil {
				return err
			}
			requests = append(requests, r)
		}
		if err := mvich.WaitAll(requests...); err != nil {
			return err
		}
		fmt.Println(squares)
		return nil
	})
	// Output: [0 1 4]
}

// Operators are functions: those of the package, and any other that combines two slices.
func ExampleAllReduce() {
	longest := func(into, with []complex128) {
		for i := range into {
			if real(with[i])*real(with[i])+imag(with[i])*imag(with[i]) > real(into[i])*real(into[i])+imag(into[i])*imag(into[i]) {
				into[i] = with[i]
			}
		}
	}
	exampleJob(4, func(c *mvich.Comm) error {
		sum := make([]int, 2)
		if err := mvich.AllReduce(c, sum, []int{1, c.Rank()}, mvich.Sum); err != nil {
			return err
		}
		far := make([]complex128, 1)
		if err := mvich.AllReduce(c, far, []complex128{complex(0, -float64(c.Rank()))}, longest); err != nil {
			return err
		}
		if c.Rank() == 2 {
			fmt.Println(sum, far)
		}
		return nil
	})
	// Output: [4 6] [(0-3i)]
}

// A column of a matrix that is stored by rows is a vector: a block of one element in each row.
func ExampleVector() {
	const rows, cols = 3, 4
	column := mvich.Vector(rows, 1, cols, mvich.Elem)
	exampleJob(2, func(c *mvich.Comm) error {
		if c.Rank() == 0 {
			matrix := []int32{
				1, 2, 3, 4,
				5, 6, 7, 8,
				9, 10, 11, 12,
			}
			return mvich.SendType(c, matrix[2:], column, 1, 0) // the third one
		}
		got := make([]int32, rows)
		_, err := mvich.Recv(c, got, 0, 0)
		fmt.Println(got)
		return err
	})
	// Output: [3 7 11]
}

// Ranks that give the same color are a communicator: here the rows of a grid of 2 x 2 ranks.
func ExampleComm_Split() {
	exampleJob(4, func(c *mvich.Comm) error {
		row, err := c.Split(c.Rank()/2, c.Rank())
		if err != nil {
			return err
		}
		members := make([]int, row.Size())
		if err := mvich.AllGather(row, members, []int{c.Rank()}); err != nil {
			return err
		}
		if c.Rank() == 3 {
			fmt.Println("rank", c.Rank(), "is rank", row.Rank(), "of", members)
		}
		return nil
	})
	// Output: rank 3 is rank 1 of [2 3]
}

// Errors are looked at by errors.Is and errors.As: a message that is too long, and a rank that is lost.
func ExampleRankError() {
	exampleJob(2, func(c *mvich.Comm) error {
		if c.Rank() == 0 {
			return c.Send([]byte("a long message"), 1, 0)
		}
		short := make([]byte, 6)
		s, err := c.Recv(short, 0, 0)
		var lost *mvich.RankError
		switch {
		case errors.As(err, &lost):
			fmt.Println("rank", lost.Rank, "is lost:", lost.Err)
		case errors.Is(err, mvich.ErrTruncated):
			fmt.Printf("only %q of %d bytes\n", short, s.Size)
		}
		return nil
	})
	// Output: only "a long" of 14 bytes
}
