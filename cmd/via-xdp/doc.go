// Command via-xdp has all commands of this project: they check and tune a machine, show
// running programs, measure, and serve.
//
//	via-xdp doctor, info, tune, cleanup, report        the machine and its interfaces
//	via-xdp res, stat, top, capture, ping              programs that have NICs open
//	via-xdp demo, bench, pingpong, stream, trace       how fast it goes
//	via-xdp mpibench, mpiapp, soak, testbed            ranks, faults, namespaces by hand
//	via-xdp agent, proxy, mpirun                       NICs, TCP and ranks for other programs
//
// docs/cli.md, made from the commands, has all of them.
//
// Exit status: 0 fine, 1 failed, 2 cannot run here, 130 interrupted.
package main
