"""A small serving engine around attngen; scheduler.py is the part to read first, then engine.py."""
