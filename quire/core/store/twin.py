"""The old name of `reference`: whatever is imported by it is the same module. Owns nothing."""

import sys
from importlib import import_module
from pkgutil import walk_packages

from quire.core.store import reference

for _part in walk_packages(reference.__path__, f"{reference.__name__}."):
    sys.modules[__name__ + _part.name.removeprefix(reference.__name__)] = import_module(_part.name)
sys.modules[__name__] = reference
