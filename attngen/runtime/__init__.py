"""Builds, finds, loads, plans and runs kernels."""
