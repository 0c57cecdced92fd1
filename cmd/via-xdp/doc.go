// Command via-xdp measures VIs over AF_XDP, makes a test bed for them and
// tells what an interface can do.
//
//	via-xdp demo                 two namespaces, all transports, a table
//	via-xdp pingpong [SERVER]    latency between two hosts
//	via-xdp stream [SERVER]      bandwidth between two hosts
//	via-xdp testbed up|down|status
//	via-xdp info [INTERFACE]
//
// Exit status: 0 fine, 1 failed, 2 cannot run here, 130 interrupted.
package main
