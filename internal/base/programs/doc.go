// Package programs lets a program with open NICs answer queries about itself, and
// lets others find it.
//
//	/run/via-xdp/proc/PID.sock   mode 0600: its own user, and root
//	  status                     one JSON document
//	  capture SNAPLEN            records of frames until the client disconnects
//
// A query is one line. One goroutine answers each query, at most maxAsked at once.
// Only producing the answer itself touches the data path. A program that was killed
// leaves its socket, which refuses connections. The next program of its user that
// lists the programs or serves removes it. Root removes nothing in directories of
// other users.
package programs
