"""Tests that need a GPU; `make test-gpu` runs them."""
