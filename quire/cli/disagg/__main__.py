"""`python -m quire.cli.disagg`: how the demo starts its other process."""

import sys

from quire.cli.disagg import main

if __name__ == "__main__":
    sys.exit(main())
