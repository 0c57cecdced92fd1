package libfabric

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
)

// Data arrives whole where one frame in a hundred is lost.
func TestLoss(t *testing.T) {
	dir := build(t)
	const loss = 0.01
	star, err := testbed.NewLossyStar(2, 1500, loss)
	if err != nil {
		nstest.Lacks(t, "%v", err)
	}
	t.Cleanup(func() { star.Close() })
	env := (&bed{}).with("FI_PROVIDER_PATH="+dir+"/prov", "VIA_HUGEPAGES=avoid", "VIA_SILENCE=30000").env
	start := func(i int, args ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd, out := exec.CommandContext(t.Context(), args[0], args[1:]...), &bytes.Buffer{}
		cmd.Env, cmd.Stdout, cmd.Stderr = env, out, out
		nstest.Must(t, star.Start(i, -1, cmd))
		return cmd, out
	}
	args := func(side string) []string {
		return []string{dir + "/suite", side, "viaxdp", star.Ends[0].IPv4.Addr().String(), "7117", "connections", "messages", "rma", "ends"}
	}
	s, said := start(0, args("server")...)
	c, out := start(1, args("client")...)
	if err := c.Wait(); err != nil || !strings.Contains(out.String(), "checks\n") {
		s.Process.Kill()
		s.Wait()
		t.Fatalf("the client: %v\n%s\nthe server:\n%s", err, out, said)
	}
	if err := s.Wait(); err != nil {
		t.Errorf("the server: %v\n%s", err, said)
	}
	if _, lost, err := star.Counts(); err != nil || lost == 0 {
		t.Errorf("%d frames were lost, %v", lost, err)
	}
}
