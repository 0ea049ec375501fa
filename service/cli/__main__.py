"""`python -m kernel_selector.service.cli`: the same as the command `selector`."""

from .main import main

raise SystemExit(main())
