"""Tests of events on the wire. Without the packages they need, all of them are skipped, with the reason."""

import pytest

for package in ("zmq", "msgspec"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[events]'")
