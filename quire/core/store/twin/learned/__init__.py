"""What is learned of reuse: ages and cells, what is gone, and the rival that the learned order is judged by."""
