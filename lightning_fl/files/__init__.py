"""Reading and writing files: atomic writes, safe names, tensors, YAML, and the files that ship with the package."""
