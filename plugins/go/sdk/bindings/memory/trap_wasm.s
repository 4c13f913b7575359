#include "textflag.h"

TEXT ·trap(SB), NOSPLIT, $0-0
	UNDEF
	RET
