"""The two databases, side by side, with the same shape: how to begin, read, write and commit, and what errors mean."""
