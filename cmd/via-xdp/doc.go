// Command via-xdp measures VIs over AF_XDP, makes a test bed for them and
// tells what an interface can do.
//
//	via-xdp demo                 two namespaces, all transports, a table
//	via-xdp pingpong [SERVER]    latency between two hosts
//	via-xdp stream [SERVER]      bandwidth between two hosts
//	via-xdp testbed up|down|status
//	via-xdp info [INTERFACE]     what an interface can do
//	via-xdp doctor [INTERFACE]   what stands in the way, and --fix
//	via-xdp tune, cleanup        settings for speed; what a crash left
//	via-xdp res, stat, top       what programs have open, and how fast it goes
//	via-xdp capture, ping        frames for Wireshark; is an agent there
//
// docs/cli.md, made from the commands, has all of them.
//
// Exit status: 0 fine, 1 failed, 2 cannot run here, 130 interrupted.
package main
