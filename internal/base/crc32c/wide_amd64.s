#include "textflag.h"

// FOLD moves acc forward by the distance of the factors in K and adds next.
#define FOLD(acc, K, next, t) \
	VPCLMULQDQ $0x00, K, acc, t   \
	VPCLMULQDQ $0x11, K, acc, acc \
	VPTERNLOGQ $0x96, next, t, acc

// func foldWide(sum uint32, b []byte, folds *[8][2]uint64) uint32
TEXT ·foldWide(SB), NOSPLIT, $0-44
	MOVL  sum+0(FP), AX
	MOVQ  b_base+8(FP), SI
	MOVQ  b_len+16(FP), CX
	MOVQ  folds+32(FP), DI

	VMOVDQU64 0(SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVD     AX, X4
	VPXORQ    Z4, Z0, Z0 // the rest of Z4 is 0
	ADDQ      $256, SI
	SUBQ      $256, CX
	JZ        together

	VBROADCASTI32X4 0(DI), Z10 // 256 bytes

loop:
	FOLD(Z0, Z10, 0(SI), Z5)
	FOLD(Z1, Z10, 64(SI), Z6)
	FOLD(Z2, Z10, 128(SI), Z7)
	FOLD(Z3, Z10, 192(SI), Z8)
	ADDQ $256, SI
	SUBQ $256, CX
	JNZ  loop

together:
	VBROADCASTI32X4 16(DI), Z10 // 192 bytes
	VBROADCASTI32X4 32(DI), Z11 // 128
	VBROADCASTI32X4 48(DI), Z12 // 64
	FOLD(Z0, Z10, Z3, Z5)
	FOLD(Z1, Z11, Z0, Z6)
	FOLD(Z2, Z12, Z1, Z7)

	// Of the four lanes of Z2, three move to the last: 48, 32 and 16 bytes.
	VEXTRACTI32X4 $3, Z2, X3
	VMOVDQU64     64(DI), Z4     // factors for 48, 32, 16 and nothing
	VPCLMULQDQ    $0x00, Z4, Z2, Z5
	VPCLMULQDQ    $0x11, Z4, Z2, Z6
	VPXORQ        Z5, Z6, Z5
	VEXTRACTI32X4 $1, Z5, X6
	VEXTRACTI32X4 $2, Z5, X7
	VPXORQ        X6, X5, X5
	VPXORQ        X7, X5, X5
	VPXORQ        X3, X5, X5

	// The 16 bytes that are left have the sum of all.
	VMOVQ   X5, R8
	VPEXTRQ $1, X5, R9
	XORL    AX, AX
	CRC32Q  R8, AX
	CRC32Q  R9, AX
	VZEROUPPER
	MOVL    AX, ret+40(FP)
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
