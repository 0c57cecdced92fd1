package suite_test

import (
	"context"
	"log"
	"os"

	"viaxdp/bench/suite"
)

// Two families of groups. As with package bench, the program must run itself again as
// what the arguments say.
func ExampleRun() {
	r, err := suite.Run(context.Background(), suite.Config{
		Groups: []string{"pingpong", "vibe"}, Mode: "generic", Hugepages: true,
		WorkerArgs: []string{"worker"}, GuardArgs: []string{"guard"},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := r.WriteTable(os.Stdout); err != nil {
		log.Fatal(err)
	}
}
