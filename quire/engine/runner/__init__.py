"""The engine itself: steps one after the other, their warm-up, and what is recorded of them."""
