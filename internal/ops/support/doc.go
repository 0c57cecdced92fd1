// Package support makes one archive of what is needed to explain a result on another
// machine: versions, settings, counters, results.
//
//	files of /proc, /sys --.
//	drivers, by ethtool  --+--> mask --> report/NAME ... in a tar.gz
//	results of the bench --'
//
// It is anonymous: hardware and IP addresses, host name and serial numbers are replaced by
// names such as mac-1 and ip-2, always the same name for the same thing. See [Mask]. Only
// those parameters of the kernel's command line that are known to be harmless keep their
// values.
//
// If something cannot be read, the archive says so; that is no error.
package support
