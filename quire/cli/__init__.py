"""The `quire` command: arguments in, words out. What a command does is in the rings below; `main` chooses one."""
