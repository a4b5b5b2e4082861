"""What people run: demo, bench, fuzz."""
