// Package mpibench measures package mvich as the benchmarks of Ohio State University measure every MPI, so that its
// figures stand beside theirs:
//
//	latency    two ranks, a message there and one back; half of the time
//	bw         two ranks, windows of 64 messages one way, then a word back
//	bibw       the same both ways at once
//	mbw_mr     pairs of ranks, all at once: bandwidth and messages a second
//	allreduce  all ranks; the mean over ranks of the time of one
//	alltoall   the same; the size is what one rank has for one other
//
// Every rank calls [Run]; rank 0 has the rows, which [Print] prints in OSU's columns. Bandwidth is in MB/s of 10^6
// bytes, time in microseconds.
//
// Iterations, windows and warming up are OSU's, fewer of them for large messages. Options make them shorter, for
// tests, and where many runs are compared.
package mpibench
