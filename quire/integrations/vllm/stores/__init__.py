"""What is stored of a request: pages in the cache, block by block, and what is left to store."""
