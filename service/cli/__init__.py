"""The command line, `selector`: arguments come in, results and an exit code go out.

One file is a group of commands; heavy imports are inside the commands only.

Results go to stdout; progress and errors go to stderr. With `--json`, stdout carries exactly one JSON
document, and an error is one JSON line on stderr. Exit codes: 0 done, 1 something is broken, 2 bad
input, 130 interrupted.
"""

from .main import main

__all__ = ["main"]
