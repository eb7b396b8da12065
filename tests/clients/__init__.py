"""Programs and libraries that people use, unchanged."""
