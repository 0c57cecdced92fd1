package bench

import (
	"context"
	"strings"
	"testing"
)

// Every operation is done as often as it should be, and each has its time.
func TestOperate(t *testing.T) {
	b := onBed(t)
	type key struct {
		name  string
		bytes int
	}
	objects, memory := map[key]int64{}, map[key]int64{}
	for _, name := range []string{OpCreatePtag, OpDestroyPtag, OpCreateCQ, OpDestroyCQ, OpCreateVI, OpDestroyVI} {
		objects[key{name, 0}] = 20
	}
	for _, name := range []string{OpAllocMem, OpFreeMem, OpRegisterMem, OpDeregisterMem} {
		memory[key{name, 4096}], memory[key{name, 32 << 20}] = 20, 10
	}
	for _, c := range []struct {
		sizes []int
		want  map[key]int64
	}{{nil, objects}, {[]int{4096, 32 << 20}, memory}} {
		r, err := Operate(t.Context(), b.client, Operations{Sizes: c.sizes, Count: 20}, b.Opening)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, r, c.want, func(o OperationTimes) key { return key{o.Name, o.Bytes} })
		if c := r.Conditions; c.Mode != "generic" || c.MTU != 1500 || len(c.PinnedCPUs) != 1 {
			t.Errorf("conditions %+v", c)
		}
	}
}

// expect checks that each operation was done the wanted number of times, and no other
// was done.
func expect[K comparable](t *testing.T, r *OperationsResult, want map[K]int64, of func(OperationTimes) K) {
	t.Helper()
	for _, o := range r.Times {
		if n := o.Times.TotalCount(); n != want[of(o)] || o.Times.Min() <= 0 {
			t.Errorf("%s, %d bytes: %d times, want %d; the least %d ns", o.Name, o.Bytes, n, want[of(o)], o.Times.Min())
		}
		delete(want, of(o))
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// Connections are made and ended beside that of the endpoint, which carries messages
// before and afterwards.
func TestConnections(t *testing.T) {
	b := onBed(t)
	b.within(t, "vi-reliable-delivery", MaxLoadBytes, func(s *Session) error {
		for range 2 {
			r, err := s.Connections(t.Context(), 5)
			if err != nil {
				return err
			}
			expect(t, r, map[string]int64{OpConnect: 5, OpDisconnect: 5, OpConnectTCP: 5, OpCloseTCP: 5}, func(o OperationTimes) string { return o.Name })
			if err := loads(t.Context(), s); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestOperationsRefuse(t *testing.T) {
	client, server, end := workers(t)
	defer end()
	ctx := context.Background()
	for title, o := range map[string]Operations{
		"none":     {Count: 0},
		"too many": {Count: maxOperations + 1},
		"no size":  {Count: 1, Sizes: []int{0}},
		"large":    {Count: 1, Sizes: []int{MaxOperationBytes + 1}},
	} {
		if _, err := Operate(ctx, client, o, nil); err == nil {
			t.Errorf("%s: accepted", title)
		}
	}
	s, err := OpenSession(ctx, client, server, Row{Name: "tcp-spin"}, 64, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Connections(ctx, 0); err == nil {
		t.Error("no connection: accepted")
	}
	if _, err := s.Connections(ctx, 1); err == nil || !strings.Contains(err.Error(), "no connections") {
		t.Errorf("got %v", err)
	}
}

// Large memory is registered less often, but at least once.
func TestOperationsOf(t *testing.T) {
	for _, c := range []struct{ count, bytes, want int }{
		{200, 4096, 200}, {200, LargeMemory, 200}, {200, MaxOperationBytes, 50}, {1, MaxOperationBytes, 1},
	} {
		if got := (Operations{Count: c.count}).of(c.bytes); got != c.want {
			t.Errorf("%d of %d bytes: %d, want %d", c.count, c.bytes, got, c.want)
		}
	}
}
