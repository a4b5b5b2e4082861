"""What released versions wrote, one folder each, and the program that writes it."""
