package bench_test

import (
	"context"
	"log"
	"os"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/testbed"
)

// Two transports side by side, in namespaces of their own. The program runs itself
// again for the two sides, and for the process that gives hugepages back when this one
// is killed.
func ExampleDemo() {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case "worker":
			log.Fatal(bench.WorkerMain())
		case "guard":
			log.Fatal(testbed.GuardMain())
		}
	}
	result, err := bench.Demo(context.Background(), bench.DemoConfig{
		Plan: bench.Plan{
			Rows:  bench.RowsOf([]string{"vi-reliable-delivery", "tcp-spin"}),
			Sizes: bench.DefaultSizes(), Turns: 3, Duration: bench.DefaultDuration, Latency: true, Bandwidth: true,
		},
		BedConfig: bench.BedConfig{
			Mode: "generic", Hugepages: true, WorkerArgs: []string{"worker"}, GuardArgs: []string{"guard"},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := report.WriteResult(os.Stdout, result); err != nil {
		log.Fatal(err)
	}
}
