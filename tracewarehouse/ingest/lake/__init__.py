"""The lake: the schema of its tables, its Parquet files, and the manifests that list them."""
