"""Tests of the front end."""
