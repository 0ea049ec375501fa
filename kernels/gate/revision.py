"""Which gate judged: a number that grows with what the gate looks at."""

from __future__ import annotations

REVISION = 1
