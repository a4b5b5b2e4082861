"""Model options: what tools with a model share on the command line, and the model they name."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from quire import InputError, MissingExtra
from quire.core.records.errors import CPU_BUILD, install_line, say
from quire.core.records.memory import parse_bytes

if TYPE_CHECKING:
    from quire.engine import LLM, PrefillPeer
    from quire.transfer import Tls


def add_model(parser: ArgumentParser) -> None:
    """Which model, where and with how much memory."""
    parser.add_argument(
        "--model", metavar="FOLDER", help="a model in transformers' format, or the hub id of a downloaded one"
    )
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--dtype", default="float32", help="float32 (default) or bfloat16")
    parser.add_argument(
        "--device-memory", default="512MiB", metavar="SIZE", help="for pages: 40GB, 512MiB (default), or bytes"
    )
    parser.add_argument("--host-memory", default="0", metavar="SIZE", help="for offloaded pages (default none)")


def add_link(parser: ArgumentParser) -> None:
    """How another process is reached, and who may."""
    parser.add_argument("--secret-file", metavar="FILE", help="the secret of both sides; default: $QUIRE_SECRET")
    parser.add_argument("--link", choices=["tcp", "nixl"], default="tcp", help="how pages travel (default tcp)")
    parser.add_argument("--tls-cert", metavar="PEM", help="this end's certificate: encrypts the connection (tcp)")
    parser.add_argument("--tls-key", metavar="PEM", help="and its key")
    parser.add_argument("--tls-ca", metavar="PEM", help="authority to trust; in `prefill` clients need its certificate")


def need_engine(model: str | None) -> None:
    """Import the engine, or say what the model needs that is meant; None is the embedded one, which needs more."""
    try:
        import quire.engine  # noqa: F401
    except MissingExtra as missing:
        if model is not None:
            raise
        fact = f"it needs torch and transformers ({missing.__cause__})"
        raise MissingExtra(say("the embedded model", fact, f"{install_line('smollm2')}; {CPU_BUILD}")) from missing


def open_llm(options: Namespace, tell: Callable[[str], None], prefill_peer: PrefillPeer | None = None) -> LLM:
    """The model, ready. Amounts are read first: a model takes long to load."""
    for what, amount in (("device memory", options.device_memory), ("host memory", options.host_memory)):
        parse_bytes(amount, what)
    from quire.engine import LLM

    try:
        return LLM(
            options.model, device=options.device, dtype=options.dtype, tell=tell,
            device_bytes=options.device_memory, host_bytes=options.host_memory, prefill_peer=prefill_peer,
        )  # fmt: skip
    except MemoryError as error:  # for the model, or for the tables over so many pages
        ask = f"device memory of {options.device_memory} and host memory of {options.host_memory}"
        raise InputError(say(ask, f"it cannot be had here ({error})", "give less")) from error


def read_secret(options: Namespace) -> bytes:
    """From the file, or from the environment."""
    if options.secret_file is not None:
        return Path(options.secret_file).read_bytes().strip()
    if "QUIRE_SECRET" in os.environ:
        return os.environ["QUIRE_SECRET"].encode()
    cure = "put at least 16 bytes into a file, the same for both, and pass --secret-file FILE; or set QUIRE_SECRET"
    raise InputError(say("a link to another process", "no secret was given", cure))


def read_tls(options: Namespace) -> Tls | None:
    """TLS, if one of its options was given."""
    from quire.transfer import Tls

    files = (options.tls_cert, options.tls_key, options.tls_ca)
    return Tls(*files) if any(files) else None


def note_printer() -> Callable[[str], None]:
    """Notes go to standard error: the answers alone are the output."""
    faint = ("\x1b[2m", "\x1b[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    return lambda note: print(f"{faint[0]}{note}{faint[1]}", file=sys.stderr, flush=True)
