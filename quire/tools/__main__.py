"""python -m quire.tools: the same as the `quire` command."""

import sys

from quire.tools.cli import main

sys.exit(main())
