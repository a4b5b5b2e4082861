"""The live page of a cache: what is in it, who uses it, what moves. Re-exports what its users need.

cache ──maps──► Snapshots ──paced──► Sampler ──JSON──► PageRoutes ──HTTP──► the page (static/), drawn on canvases
"""

from quire.viewer.viewer import Viewer

__all__ = ["Viewer"]
