"""Reading and writing files: tables (CSV, Excel, ...), tensors, YAML, atomic writes, safe names, packaged files."""
