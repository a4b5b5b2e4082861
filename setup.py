"""Builds the one extension module, quire.core.store._compiled; all else is in pyproject.toml.

The module is optional: without it Quire runs on its pure-Python reference store. QUIRE_PURE=1 skips it,
QUIRE_PURE=0 makes a failed compilation an error (for those who publish wheels), unset tries.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

STORE = Path("quire/core/store")
SOURCE = STORE / "_compiled.pyx"
PURE = os.environ.get("QUIRE_PURE", "")

NOTICE = """
*** Quire is being installed WITHOUT its compiled module: {reason}
*** (What the compiler said, if it ran, is above.)
*** Quire runs on its pure-Python reference store: the same answers, but slower.
*** To get the compiled module: install a C compiler and the Python headers
*** (Debian, Ubuntu: apt install gcc python3-dev; Fedora: dnf install gcc python3-devel;
*** macOS: xcode-select --install), leave QUIRE_PURE unset and install Quire again.
"""


class Unavailable(Exception):
    """Why the module is not even tried."""


class BuildOrFallBack(build_ext):
    """Translates and compiles; on failure says so and carries on without the module."""

    def run(self) -> None:
        in_tree = self.inplace or self.editable_mode
        try:
            self._translate()
            super().run()
        except (Exception, SystemExit) as error:  # Cython, the compiler and distutils share no error type
            if PURE == "0":
                raise
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            print(NOTICE.format(reason=reason if len(reason) < 200 else reason[:200] + " ..."), file=sys.stderr)
            self.extensions = self.distribution.ext_modules = []
            if in_tree:  # an older build must not answer for the new source
                for stale in (*STORE.glob("_compiled*.so"), *STORE.glob("_compiled*.pyd")):
                    stale.unlink()

    def _translate(self) -> None:
        if PURE == "1":
            raise Unavailable("QUIRE_PURE=1 is set")
        if not SOURCE.exists():
            raise Unavailable(f"there is no {SOURCE}")
        from Cython.Build import cythonize

        (translated,) = cythonize(
            self.extensions, build_dir="build/cython", compiler_directives={"language_level": 3}, quiet=True
        )
        self.extensions[0].sources = translated.sources


class WheelNamedByContent(bdist_wheel):
    """Names the wheel cp311-abi3 when it holds the module, py3-none-any when it does not."""

    def run(self) -> None:
        self.run_command("build_ext")
        if not self.distribution.has_ext_modules():
            self.root_is_pure, self.py_limited_api = True, False
        super().run()


def index_page() -> str:
    """README.md for the package index, which knows no other file of ours: its relative links become absolute ones."""
    home = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Homepage"]

    def absolute(link: re.Match[str]) -> str:
        folder = "raw" if link[1] == "!" else "blob"
        return f"{link[1]}[{link[2]}]({home}/{folder}/HEAD/{link[3]})"

    text = Path("README.md").read_text(encoding="utf-8")
    return re.sub(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)", absolute, text)


setup(
    long_description=index_page(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            "quire.core.store._compiled",
            sources=[SOURCE.as_posix()],
            depends=sorted(path.as_posix() for path in STORE.glob("compiled/**/*.pxi")),
            define_macros=[("Py_LIMITED_API", "0x030b0000")],
            extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-g0"],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildOrFallBack, "bdist_wheel": WheelNamedByContent},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
