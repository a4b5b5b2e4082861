"""Span: a half-open range of tokens or of blocks. Owns nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import InputError, say


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """`[start, end)`; an empty span is legal and false."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if type(self.start) is not int or type(self.end) is not int or not 0 <= self.start <= self.end:
            raise InputError(
                say(
                    f"span [{self.start}, {self.end})",
                    "it needs ints with 0 <= start <= end",
                    "swap or raise the bounds",
                )
            )

    def __len__(self) -> int:
        return self.end - self.start

    def __contains__(self, place: int) -> bool:
        return self.start <= place < self.end
