"""Tests with unchanged programs and libraries that people use."""
