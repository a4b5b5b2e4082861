"""What is learned of reuse: ages and cells, ghosts of gone pages, and the rival that judges the learned order."""
