"""`quire demo`: one batch admitted both ways, and the same on a real model."""
