"""What is served: runs, their branches and beams, whose they are, their work and times. Decides nothing."""
