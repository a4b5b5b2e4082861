"""What is learned of reuse: ages and cells, and what is gone."""
