"""python -m fuzzing: what `make fuzz` runs."""

import sys

from fuzzing.cli import main

sys.exit(main())
