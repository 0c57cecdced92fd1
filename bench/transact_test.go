package bench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// transactions makes some of several sizes, every byte checked.
func transactions(ctx context.Context, s *Session) error {
	for _, reply := range []int{1, 4, 7, 8, 64, 1500, 1 << 16} {
		r, err := s.Transactions(ctx, Transactions{Reply: reply, Duration: 3 * time.Millisecond, Check: true})
		if err != nil {
			return fmt.Errorf("replies of %d bytes: %w", reply, err)
		}
		if r.PerSecond <= 0 || r.Times.TotalCount() == 0 || r.Times.Min() <= 0 || r.CPUTx <= 0 || r.CPURx <= 0 {
			return fmt.Errorf("replies of %d bytes: %+v", reply, r)
		}
	}
	return nil
}

func TestTransactionsOverVeth(t *testing.T) {
	b := onBed(t)
	for _, name := range []string{"vi-reliable-delivery", "vi-reliable-delivery-wait", "vi-rdma-write", "tcp-spin"} {
		b.within(t, name, 1<<16, func(s *Session) error { return transactions(t.Context(), s) })
	}
}

func TestTransactionsOverLoopback(t *testing.T) {
	client, server, end := workers(t)
	defer end()
	ctx := t.Context()
	s, err := OpenSession(ctx, client, server, "tcp-block", 1<<16, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := transactions(ctx, s); err != nil {
		t.Fatal(err)
	}
}

// What cannot be is refused before anything waits for it.
func TestTransactionsRefuse(t *testing.T) {
	for _, c := range []struct {
		name     string
		maxBytes int
		reply    int
		want     string
	}{
		{"tcp-spin", 64, 0, "a reply of 0 bytes"},
		{"tcp-spin", 64, MaxMessage + 1, "1 to"},
		{"udp-spin", 64, 64, "makes no transactions"},
		{"tcp-spin", 4, 4, "larger than announced"}, // the request is
		{"tcp-spin", 64, 65, "larger than announced"},
	} {
		client, server, end := workers(t)
		s, err := OpenSession(t.Context(), client, server, c.name, c.maxBytes, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Transactions(t.Context(), Transactions{Reply: c.reply, Duration: time.Millisecond})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %d bytes: got %v, want a word about %q", c.name, c.reply, err, c.want)
		}
		end()
	}
}
