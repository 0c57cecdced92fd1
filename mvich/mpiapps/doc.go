// Package mpiapps is two applications of package mvich, as they are found in many programs that compute:
//
//	stencil  a plate whose border has fixed temperatures, relaxed step by step
//	         (Jacobi): four neighbours' edges in each step, and now and then the
//	         largest change of all ranks
//	cg       a linear system with a matrix of five diagonals (Poisson's equation
//	         in the plane), solved by conjugate gradients: four neighbours' edges
//	         and two sums over all ranks in each step
//
// Both cut a square into blocks of about the same size, one for each rank:
//
//	+-----+-----+     rank 0 | rank 1       a block has a border of one point,
//	|  0  |  1  |     -------+-------       in which the edges of the neighbours
//	+-----+-----+     rank 2 | rank 3       arrive
//	|  2  |  3  |
//	+-----+-----+
//
// Every rank calls [Run]. Rank 0 does the same without any other rank afterwards, and compares the results, point by
// point.
package mpiapps
