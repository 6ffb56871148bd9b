"""`python -m ai.backend.cli`, the same as the installed script (spec 03-04:594)."""

from ai.backend.cli.main import main

main()
