"""Apache Spark as the engine: the same SQL and the same rows, and ingest of many captures. Needs the extra `spark`."""
