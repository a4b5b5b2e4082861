"""Pages from and for outside: find, writer, prefetch, holds, what is lost, forgotten or lasts, and events."""
