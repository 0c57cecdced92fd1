#include "textflag.h"

// FOLD moves acc forward by the distance of the factors in K and adds next.
#define FOLD(acc, K, next, t) \
	VPCLMULQDQ $0x00, K, acc, t   \
	VPCLMULQDQ $0x11, K, acc, acc \
	VPTERNLOGQ $0x96, next, t, acc

// BEGIN adds the sum in AX to the first 256 bytes, which are in Z0 to Z3 (the rest of Z4 is 0), and loads the factors at DI:
// for 256, 192, 128 and 64 bytes.
#define BEGIN \
	VMOVD           AX, X4         \
	VPXORQ          Z4, Z0, Z0     \
	VBROADCASTI32X4 0(DI), Z10     \
	VBROADCASTI32X4 16(DI), Z11    \
	VBROADCASTI32X4 32(DI), Z12    \
	VBROADCASTI32X4 48(DI), Z13

// JOIN folds Z0 to Z3 into Z2.
#define JOIN \
	FOLD(Z0, Z11, Z3, Z5) \
	FOLD(Z1, Z12, Z0, Z6) \
	FOLD(Z2, Z13, Z1, Z7)

// SUM makes the sum in AX of the 64 bytes in Z2. Of their four lanes, three move to the last, by 48, 32 and 16 bytes: Z4 has
// the factors for that and nothing. The 16 bytes that are left have the sum of all.
#define SUM \
	VEXTRACTI32X4 $3, Z2, X3          \
	VMOVDQU64     64(DI), Z4          \
	VPCLMULQDQ    $0x00, Z4, Z2, Z5   \
	VPCLMULQDQ    $0x11, Z4, Z2, Z6   \
	VPXORQ        Z5, Z6, Z5          \
	VEXTRACTI32X4 $1, Z5, X6          \
	VEXTRACTI32X4 $2, Z5, X7          \
	VPXORQ        X6, X5, X5          \
	VPXORQ        X7, X5, X5          \
	VPXORQ        X3, X5, X5          \
	VMOVQ         X5, R8              \
	VPEXTRQ       $1, X5, R9          \
	XORL          AX, AX              \
	CRC32Q        R8, AX              \
	CRC32Q        R9, AX              \
	VZEROUPPER

// func foldWide(sum uint32, b []byte, folds *[8][2]uint64) uint32
TEXT ·foldWide(SB), NOSPLIT, $0-44
	MOVL sum+0(FP), AX
	MOVQ b_base+8(FP), SI
	MOVQ b_len+16(FP), CX
	MOVQ folds+32(FP), DI

	VMOVDQU64 0(SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	BEGIN
	ADDQ      $256, SI
	SUBQ      $512, CX
	JLT       together

loop:
	FOLD(Z0, Z10, 0(SI), Z5)
	FOLD(Z1, Z10, 64(SI), Z6)
	FOLD(Z2, Z10, 128(SI), Z7)
	FOLD(Z3, Z10, 192(SI), Z8)
	ADDQ $256, SI
	SUBQ $256, CX
	JGE  loop

together:
	JOIN
	ADDQ $192, CX // the length that is left, less 64
	JLT  sum

blocks:
	FOLD(Z2, Z13, 0(SI), Z5)
	ADDQ $64, SI
	SUBQ $64, CX
	JGE  blocks

sum:
	SUM
	MOVL AX, ret+40(FP)
	RET

// func foldCopy(sum uint32, dst *byte, b []byte, folds *[8][2]uint64) uint32
TEXT ·foldCopy(SB), NOSPLIT, $0-52
	MOVL sum+0(FP), AX
	MOVQ dst+8(FP), DX
	MOVQ b_base+16(FP), SI
	MOVQ b_len+24(FP), CX
	MOVQ folds+40(FP), DI

	VMOVDQU64 0(SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVDQU64 Z0, 0(DX)
	VMOVDQU64 Z1, 64(DX)
	VMOVDQU64 Z2, 128(DX)
	VMOVDQU64 Z3, 192(DX)
	BEGIN
	ADDQ      $256, SI
	ADDQ      $256, DX
	SUBQ      $512, CX
	JLT       together

loop:
	VMOVDQU64 0(SI), Z14
	VMOVDQU64 64(SI), Z15
	VMOVDQU64 128(SI), Z16
	VMOVDQU64 192(SI), Z17
	VMOVDQU64 Z14, 0(DX)
	VMOVDQU64 Z15, 64(DX)
	VMOVDQU64 Z16, 128(DX)
	VMOVDQU64 Z17, 192(DX)
	FOLD(Z0, Z10, Z14, Z5)
	FOLD(Z1, Z10, Z15, Z6)
	FOLD(Z2, Z10, Z16, Z7)
	FOLD(Z3, Z10, Z17, Z8)
	ADDQ $256, SI
	ADDQ $256, DX
	SUBQ $256, CX
	JGE  loop

together:
	JOIN
	ADDQ $192, CX
	JLT  sum

blocks:
	VMOVDQU64 0(SI), Z14
	VMOVDQU64 Z14, 0(DX)
	FOLD(Z2, Z13, Z14, Z5)
	ADDQ $64, SI
	ADDQ $64, DX
	SUBQ $64, CX
	JGE  blocks

sum:
	SUM
	MOVL AX, ret+48(FP)
	RET

// func foldShort(sum uint32, b []byte) uint32
TEXT ·foldShort(SB), NOSPLIT, $0-36
	MOVL sum+0(FP), AX
	MOVQ b_base+8(FP), SI
	MOVQ b_len+16(FP), CX
	SUBQ $8, CX
	JLT  tail

words:
	CRC32Q (SI), AX
	ADDQ   $8, SI
	SUBQ   $8, CX
	JGE    words

tail:
	// CX has the length that is left, less 8.
	TESTB  $4, CX
	JZ     two
	CRC32L (SI), AX
	ADDQ   $4, SI

two:
	TESTB  $2, CX
	JZ     one
	CRC32W (SI), AX
	ADDQ   $2, SI

one:
	TESTB  $1, CX
	JZ     done
	CRC32B (SI), AX

done:
	MOVL AX, ret+32(FP)
	RET
