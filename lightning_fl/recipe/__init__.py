"""Recipes: read, checked, parsed, made into a trainer with its model and data, and run."""
