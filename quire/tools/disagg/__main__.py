"""`python -m quire.tools.disagg`: how the demo starts its other process."""

import sys

from quire.tools.disagg import main

if __name__ == "__main__":
    sys.exit(main())
