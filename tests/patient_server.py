"""A server that waits for its clients as long as tests wait for it, for all folders that start one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .waits import PATIENCE


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """A busy machine is as slow as a client that is sent away; a test that needs such a client sets its own times."""
    try:
        from quire.serve.connections import acceptor, http_connection
        from quire.serve.http import exchange
    except ImportError:  # its packages are missing: nothing that needs them is collected
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acceptor, "HANDSHAKE_SECONDS", PATIENCE)
        patch.setattr(http_connection, "HEAD_SECONDS", PATIENCE)
        patch.setattr(exchange, "PATIENCE", PATIENCE)
        yield
