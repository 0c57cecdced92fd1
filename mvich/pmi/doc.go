// Package pmi speaks PMI-1. Hydra's mpiexec, and that of other MPI implementations, uses this interface to start the
// ranks of a job: it gives each rank its number, and carries addresses between ranks. A [Client] is a rank's side,
// and a mvich.Launcher; a [Server] is the launcher's, of via-xdp mpirun.
//
//	mpiexec (one on each host) <--- PMI_FD: a socket, or PMI_PORT: host:port ---> rank
//
//	cmd=init pmi_version=1 pmi_subversion=1       cmd=response_to_init ... rc=0
//	cmd=get_maxes                                 cmd=maxes kvsname_max=... keylen_max=... vallen_max=...
//	cmd=get_my_kvsname                            cmd=my_kvsname kvsname=...
//	cmd=put kvsname=... key=... value=...         cmd=put_result rc=0
//	cmd=barrier_in                                cmd=barrier_out, when all are in
//	cmd=get kvsname=... key=...                   cmd=get_result rc=0 value=...
//	cmd=finalize                                  cmd=finalize_ack
//	cmd=abort exitcode=...
//
// A line is words of the form name=value between spaces, so that neither keys nor values can have a space. PMI_RANK
// and PMI_SIZE come in the environment; with PMI_PORT there is PMI_ID instead, and the launcher sends the rest on the
// connection.
//
// Slurm's srun speaks it with --mpi=pmi2: that plugin takes both PMI-1 and PMI-2, which is another protocol and not
// spoken here. With --mpi=none there is no socket, and --mpi=pmix is yet another protocol: start Hydra's mpiexec in
// the allocation. The error of [FromEnv] says so in these cases and under Open MPI's mpirun.
package pmi
