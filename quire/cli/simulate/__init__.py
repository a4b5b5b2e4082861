"""`quire replay`, `sweep`, `fleet` and `plan`: the commands of quire.simulate."""
