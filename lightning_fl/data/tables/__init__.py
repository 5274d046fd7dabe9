"""Tables of numbers and categories, and a synthetic one."""
