"""Prefill in one engine, decode in another: peers, their orders, and pages on the way. Needs the extra `transfer`."""

import quire.transfer as _transfer  # noqa: F401  first of all: it says what to install
