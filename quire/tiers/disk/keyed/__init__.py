"""Pages under a caller's own keys, on disk: for caches of other engines, which know their pages by name."""

from quire.tiers.disk.keyed.key_disk import KeyDisk
from quire.tiers.disk.keyed.key_jobs import KeyJobs, KeyJobsDone

__all__ = ["KeyDisk", "KeyJobs", "KeyJobsDone"]
