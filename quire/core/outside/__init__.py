"""Calls for everything outside the step: pages that others bring (writer, prefetch, lasting), read (find, hold), spoil
(lose) or want removed (removal), what they know of the future (hint_stored), and what happened (take_events)."""
