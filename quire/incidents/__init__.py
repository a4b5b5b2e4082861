"""Incidents: every call that changes a cache, kept for a while without text, and played again exactly."""

from quire.incidents.files.incident_file import Incident, load
from quire.incidents.incidents import Incidents
from quire.incidents.play.loose_player import LoosePlayer, PlayOutcome
from quire.incidents.play.player import IncidentPlayer
from quire.incidents.signs import Lines

__all__ = ["Incident", "IncidentPlayer", "Incidents", "Lines", "LoosePlayer", "PlayOutcome", "load"]
