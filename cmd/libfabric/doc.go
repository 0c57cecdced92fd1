// Package libfabric has the tests of libviaxdp-fi.so, the libfabric provider in src. See docs/libfabric.md.
package libfabric
