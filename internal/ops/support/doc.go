// Package support makes one archive of what somebody must know who is to explain
// a result on another machine: versions, settings, counters, results.
//
//	files of /proc, /sys --.
//	drivers, by ethtool  --+--> mask --> report/NAME ... in a tar.gz
//	results of the bench --'
//
// Nothing in it says who or where: hardware and IP addresses, host name and
// serial numbers are replaced by names such as mac-1 and ip-2, the same wherever
// the same thing stands. See [Mask]. Of the kernel's command line only parameters that
// are known to be harmless have their values.
//
// What cannot be read is said in the archive and is no error.
package support
