"""Cards, which say what is known of a data set, and where its files are found."""
