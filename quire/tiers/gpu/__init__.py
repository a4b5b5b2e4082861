"""What moves pages by a GPU: copies by one launch, and host memory that is pinned for them."""
