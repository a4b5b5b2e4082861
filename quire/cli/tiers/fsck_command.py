"""quire fsck: look at every record and every page that a disk tier keeps, say in plain words what is wrong with them,
and with --repair leave only what is sound.

Exit status, as other fsck have it: 0 nothing is damaged, 1 damage was repaired, 4 damage was left as it is, 8 something
could not be examined (in use, another format), 2 the command line makes no sense.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING

from quire import QuireError
from quire.cli.arguments import CommandParser
from quire.simulate.show.screen import progress

if TYPE_CHECKING:
    from quire.tiers.disk.fsck import ModelReport

SOUND, REPAIRED, USAGE, DAMAGED, REFUSED = 0, 1, 2, 4, 8
SHOWN = 50  # findings of one model; --json has them all


def main(argv: list[str] | None = None) -> int:
    """Examine each model's pages in turn."""
    options = _parser().parse_args(argv)
    from quire.tiers.disk.fsck import model_folders

    try:
        folders = model_folders(Path(options.folder))
    except QuireError as error:
        print(f"quire fsck: {error}", file=sys.stderr)
        return USAGE
    reports = [_examine(folder, options.repair) for folder in folders]
    if options.json:
        print(json.dumps({"models": [_plain(report) for report in reports]}, indent=2))
    else:
        print("\n".join(line for report in reports for line in _lines(report)))
    return max(_status(report) for report in reports)


def _parser() -> ArgumentParser:
    parser = CommandParser(prog="quire fsck", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", help="as given to the disk tier, or one model's folder inside it")
    parser.add_argument("--repair", action="store_true", help="keep what is sound, and forget the rest")
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    return parser


def _examine(folder: Path, repair: bool) -> ModelReport:
    from quire.tiers.disk.fsck import examine

    with progress(f"pages of {folder.name[:16]}", None) as advance:
        seen = 0

        def tick(done: int, total: int) -> None:
            nonlocal seen
            advance(done - seen)
            seen = done

        return examine(folder, repair, tick)


def _status(report: ModelReport) -> int:
    if report.refused:
        return REFUSED
    if report.damaged:
        return REPAIRED if report.repaired else DAMAGED
    return SOUND


def _plain(report: ModelReport) -> dict[str, object]:
    return {
        "fingerprint": report.fingerprint,
        "folder": str(report.folder),
        "pages": report.num_pages,
        "blocks": report.num_blocks,
        "disk_bytes": report.disk_bytes,
        "refused": report.refused,
        "damaged": report.damaged,
        "repaired": report.repaired,
        "findings": [{"kind": one.kind, "damage": one.damage, "text": one.text} for one in report.findings],
    }


def _lines(report: ModelReport) -> list[str]:
    """A model in words."""
    size = f"{report.num_pages} pages of {report.num_blocks} blocks, {report.disk_bytes / 1e9:.3g} GB on disk"
    lines = [f"model {report.fingerprint[:16]}: {'not examined' if report.refused else size}"]
    if report.refused:
        return [*lines, f"  {report.refused}"]
    for one in report.findings[:SHOWN]:
        lines.append(f"  {'damage' if one.damage else 'note  '}  {one.text}")
    if len(report.findings) > SHOWN:
        lines.append(f"  and {len(report.findings) - SHOWN} more; --json has them all")
    if report.repaired:
        lines.append("  repaired: what is sound was kept, the rest is forgotten")
    elif report.damaged:
        lines.append("  a damaged page is never served; --repair forgets what is lost")
    elif not report.findings:
        lines.append("  every record and every page is as it was written")
    return lines


if __name__ == "__main__":
    sys.exit(main())
