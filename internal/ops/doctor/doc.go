// Package doctor checks a machine and an interface. It reports what prevents VIs from
// running or slows them down, and the remedy.
//
//	Gather       reads the machine: sysfs, procfs, netlink, ethtool  -> Facts
//	Checks       a table; each check makes findings of facts alone
//	Report.Steps what package undo is to change
//
// Checks ask nothing of the machine, so that each is tested with facts made up. No
// other program is run. Gather works without privilege, and what it could not see is a
// finding of its own ("unknown"); only the trial of the demux program needs CAP_BPF.
// Neither of the first two changes anything.
package doctor
