package agentd_test

import (
	"strings"
	"testing"

	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/lab/nstest"
)

// The status lists the interfaces that the requesting user is served.
func TestServed(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	g := startAgent(t, ns, agentConfig{Ifaces: map[string]agentd.Interface{
		"via0": {Users: []uint32{60002}}, "all": {}, "none": {Users: []uint32{}},
	}})
	for uid, want := range map[int]string{0: "all none via0", 60001: "all", 60002: "all via0"} {
		reply, err := g.rawAs(t, uid).hello().ask(agentproto.Request{ID: 2, Op: agentproto.OpStatus})
		nstest.Must(t, err)
		if got := strings.Join(reply.Status.Served, " "); got != want || reply.Status.Serves("via0") != strings.Contains(want, "via0") {
			t.Errorf("user %d: %q, want %q", uid, got, want)
		}
	}
	// Without settings root has all but the loopback, others nothing.
	for uid, want := range map[int]bool{0: true, 60001: false} {
		reply, err := startAgent(t, ns, agentConfig{Defaults: true, Mode: 0o666, Access: agentd.Grant{Users: []uint32{60001}}}).
			rawAs(t, uid).hello().ask(agentproto.Request{ID: 2, Op: agentproto.OpStatus})
		if err != nil || reply.Status.Serves("any") != want || reply.Status.Serves("lo") {
			t.Errorf("without settings, user %d: %+v, %v", uid, reply.Status, err)
		}
	}
	nothing := startAgent(t, ns, agentConfig{Ifaces: map[string]agentd.Interface{"via0": {Users: []uint32{60002}}}})
	reply, err := nothing.rawAs(t, 60001).hello().ask(agentproto.Request{ID: 2, Op: agentproto.OpStatus})
	if err != nil || reply.Status.Served == nil || reply.Status.Serves("via0") {
		t.Errorf("of nothing: %+v, %v", reply.Status, err)
	}
}
