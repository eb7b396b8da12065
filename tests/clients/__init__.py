"""Tests with programs and libraries that people use, unchanged."""
