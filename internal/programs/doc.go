// Package programs is how a program with open NICs answers questions about
// itself, and how others find it.
//
//	/run/via-xdp/proc/PID.sock   mode 0600: its own user, and root
//	  status                     one JSON document
//	  capture SNAPLEN            records of frames until the asker leaves
//
// A question is a line. The answerer is one goroutine for each question, and at
// most maxAsked at once; none of it touches the data path but what the answer
// itself takes. A program that was killed leaves its socket, on which nobody
// answers; whoever of its user lists the programs or serves next removes it. Root
// removes nothing in directories of other users.
package programs
