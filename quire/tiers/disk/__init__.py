"""Pages on disk that outlive the process. Re-exports what a caller needs; needs xxhash (the extra `disk`)."""

from quire.tiers.disk.folder import DiskFolder, OpenReport
from quire.tiers.disk.keep.keeper import DiskKeeper
from quire.tiers.disk.keep.pace import KeeperPace, KeeperReport
from quire.tiers.disk.pages.tier import DiskCounts, DiskIO, DiskTier
from quire.tiers.disk.ranks.rank import DiskRank, LocalRank, RankDone
from quire.tiers.disk.space import DiskLimits, check_index, page_index, slots_for

__all__ = [
    "DiskCounts",
    "DiskFolder",
    "DiskIO",
    "DiskKeeper",
    "DiskLimits",
    "DiskRank",
    "DiskTier",
    "KeeperPace",
    "KeeperReport",
    "LocalRank",
    "OpenReport",
    "RankDone",
    "check_index",
    "page_index",
    "slots_for",
]
