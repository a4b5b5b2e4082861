"""Certificates for tests of TLS, made by the `openssl` command: an authority, and what it has signed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from quire.transfer import Tls

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")


class Authority:
    """One in a folder of its own; `issue` signs a certificate for a host."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder, self.name = folder, name
        self.ca = folder / f"{name}.pem"
        extra = ["-x509", "-days", "2", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        self._make(name, [*extra, "-out", str(self.ca)])

    def _make(self, name: str, extra: list[str]) -> Path:
        key = self.folder / f"{name}.key"
        words = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"]
        openssl(*words, "-keyout", str(key), *extra)
        return key

    def issue(self, name: str, host: str = "IP:127.0.0.1", *, trusting: bool = True, days: int = 2) -> Tls:
        """Certificate and key of a worker; with `trusting`, whom it believes is this authority."""
        request, cert, facts = (self.folder / f"{name}.{end}" for end in ("csr", "pem", "cnf"))
        key = self._make(name, ["-out", str(request)])
        facts.write_text(f"subjectAltName={host}\n")
        by = ["-CA", str(self.ca), "-CAkey", str(self.folder / f"{self.name}.key"), "-CAcreateserial"]
        openssl("x509", "-req", "-in", str(request), *by, "-days", str(days), "-extfile", str(facts), "-out", str(cert))
        return Tls(cert, key, self.ca if trusting else None)


def openssl(*words: str) -> None:
    ran = subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
