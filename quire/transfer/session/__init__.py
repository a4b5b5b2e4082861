"""Both halves of a session and what an endpoint does with news of it. Owns no thread and no socket."""
