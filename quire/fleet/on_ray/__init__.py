"""A fleet on Ray Serve: replicas are workers, a request router of ours chooses among them. Needs the extra `ray`."""

import os as _os

_os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported: no statistics are sent
_os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
_os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")

try:
    import ray as _ray  # noqa: F401
    import ray.serve as _serve  # noqa: F401
except ImportError as missing:
    from quire.core.records.errors import MissingExtra, install_line, say

    fact = f"it needs ray[serve] ({missing})"
    raise MissingExtra(say("a fleet of replicas", fact, install_line("ray"))) from missing
