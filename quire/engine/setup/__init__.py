"""Before an engine runs: its settings, the sizes that fit a machine, requests as they are checked and prepared."""
