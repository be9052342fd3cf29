import org.apache.spark.sql.SparkSession;

/** Reads tables with Spark alone, and writes what it finds as Parquet: WAREHOUSE, and FORMAT TABLE FOLDER for each table. */
public final class ReadTables {
    private ReadTables() {
    }

    public static void main(String[] args) {
        SparkSession spark = SparkSession.builder()
            .master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.databricks.delta.snapshotPartitions", "1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .config("spark.sql.catalog.default_iceberg", "org.apache.iceberg.spark.SparkCatalog")
            .config("spark.sql.catalog.default_iceberg.type", "hadoop") // else it asks for classes of Hive
            .config("spark.sql.catalog.default_iceberg.warehouse", args[0])
            .getOrCreate();
        for (int i = 1; i < args.length; i += 3) {
            spark.read().format(args[i]).load(args[i + 1]).coalesce(1).write().parquet(args[i + 2]);
        }
        spark.stop();
    }
}
