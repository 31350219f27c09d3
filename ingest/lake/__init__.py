"""The lake: the schema of its tables, Parquet files, and the manifests that say what is there."""
