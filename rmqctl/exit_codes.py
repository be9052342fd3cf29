"""Define the exit codes of the process, an interface that scripts rely on."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
FINDINGS: Final = 3
NOT_A_STORE: Final = 10
IN_USE: Final = 11
OUT_OF_DATE: Final = 12
INTERRUPTED: Final = 130
TERMINATED: Final = 143

BY_ERROR_CODE: Final = {
    "failed": FAILED,
    "usage": USAGE,
    "not_a_store": NOT_A_STORE,
    "in_use": IN_USE,
    "out_of_date": OUT_OF_DATE,
}
