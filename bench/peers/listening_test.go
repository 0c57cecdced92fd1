package peers

import (
	"strings"
	"testing"
)

func TestSocketIn(t *testing.T) {
	for _, test := range []struct {
		file  string
		s     socket
		there bool
	}{
		{"proc-net-tcp", socket{tcp, 13337}, true},  // LISTEN
		{"proc-net-tcp", socket{tcp, 47592}, false}, // TIME_WAIT
		{"proc-net-tcp", socket{tcp, 13336}, false}, // no such port
		{"proc-net-tcp", socket{udp, 13337}, false}, // LISTEN is no state of UDP
		{"proc-net-tcp6", socket{tcp, 20002}, true},
		{"proc-net-udp", socket{udp, 11111}, true},
		{"proc-net-udp", socket{tcp, 11111}, false},
	} {
		if got := test.s.in(recorded(t, test.file)); got != test.there {
			t.Errorf("%s, %v: %v", test.file, test.s, got)
		}
	}
}

func FuzzSocketIn(f *testing.F) {
	for _, file := range []string{"proc-net-tcp", "proc-net-tcp6", "proc-net-udp"} {
		f.Add(recorded(f, file), 13337)
	}
	f.Fuzz(func(t *testing.T, table string, port int) {
		if !(socket{tcp, port}).in(table) {
			return
		}
		if port < 0 || port > 0xffff || !strings.Contains(table, stateListen) {
			t.Errorf("port %d found in %q", port, table)
		}
	})
}
