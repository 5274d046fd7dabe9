"""Cards, which describe data sets, and the search for their files."""
