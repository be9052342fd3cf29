"""Arrow rows, splits, the local writer, the Spark job, manifests."""
