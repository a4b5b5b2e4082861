"""What many users share: the loop, streams of answers, text and its stops, who may come in."""
