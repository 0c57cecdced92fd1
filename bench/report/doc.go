// Package report holds what a run of the reference suite has found, and shows it: as
// JSON, as tables, as a comparison of two runs, as plots, and as the document
// docs/benchmarks.md.
//
//	bench/suite measures --> Report --> Write, Read           JSON
//	                           |    --> WriteTable            for a terminal
//	                           |    --> Compare(a, b)         two runs
//	                           |    --> WritePlots            SVG
//	                           |    --> WriteMarkdown         docs/benchmarks.md
//	                           +-- Point.SaveHistograms       *.hdr, one a point
//
// A Report has groups, each of them one question; a group has series, the rows of its
// tables and lines of its plots; a series has points along the group's axis; a point
// has a Value for each Metric, the turns with their median. The median is what is
// shown, and the spread of the turns shows how reliable it is.
//
// # Units
//
// Metrics carry their unit in their name. MB is 10^6 bytes everywhere; the columns are
// called as perftest calls them, but perftest's own MB has 2^20. Latencies are half of
// a round trip, unless a group says otherwise. A series whose name has "round trip" or
// "rdma-read" in it has whole ones: it is never compared with the others.
//
// # Names
//
// What a series is follows from how its name begins: raw- and asavie- are the floor,
// rings without a VI; tcp and "net/http over TCP" are the kernel's TCP, udp its UDP;
// sockperf, iperf3, fi_pingpong, ucx_perftest and mpich are other people's programs;
// mvich- is via-xdp forced to use one protocol, which is shown and takes part in no
// comparison; everything else is via-xdp. A series of another MTU than its group's says
// so at the end of its name: "vi-reliable-delivery MTU 9000".
//
// The document begins with where TCP or another program was better.
//
// # Histograms
//
// A point may have a file in the log format of HdrHistogram, next to the report, with
// an interval for each turn; the values are nanoseconds.
//
// Nothing here measures, needs a privilege or reads a clock. A Report and its parts
// belong to one goroutine while they change; reading them is safe from several.
package report
