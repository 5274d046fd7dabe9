"""Images: files, folders and arrays, ready data sets."""
