package route

import (
	"errors"
	"sync"
	"testing"

	"viaxdp/internal/lab/await"
)

// Those who ask while one asks the kernel share the next answer, which is newer than their
// question; who fails fails alone.
func TestShared(t *testing.T) {
	var s shared[int]
	asks := 0
	asking, goOn := make(chan struct{}), make(chan struct{})
	first := make(chan int, 1)
	go func() {
		v, _ := s.get(func() (int, error) {
			asks++
			close(asking)
			<-goOn
			return asks, nil
		})
		first <- v
	}()
	<-asking
	const many = 100
	got := make(chan int, many)
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			v, err := s.get(func() (int, error) { asks++; return asks, nil })
			if err != nil {
				t.Error(err)
			}
			got <- v
		})
	}
	await.Until(t, "all have asked", func() bool { return s.asked.Load() >= 1+many })
	close(goOn)
	all.Wait()
	if v := <-first; v != 1 || asks != 2 {
		t.Errorf("the first got %d; the kernel was asked %d times, want 2", v, asks)
	}
	for range many {
		if v := <-got; v != 2 {
			t.Errorf("one got %d", v)
		}
	}
	failure := errors.New("interrupted")
	if _, err := s.get(func() (int, error) { return 0, failure }); !errors.Is(err, failure) {
		t.Errorf("one that fails: %v", err)
	}
	if v, err := s.get(func() (int, error) { return 7, nil }); v != 7 || err != nil {
		t.Errorf("after it: %d, %v", v, err)
	}
}
