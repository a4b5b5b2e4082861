"""Tests of a server in front of many workers. `ray_rig.py` and `on_ray.py` need Ray, and are run by hand."""
